"""Frozen data that crosses boundaries: canonical JSON and errors. Imports no other package of pylash."""

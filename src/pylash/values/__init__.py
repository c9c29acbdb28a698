"""Frozen data that crosses boundaries: canonical JSON and errors. Imports nothing of ours."""

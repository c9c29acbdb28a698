"""Agents of other libraries, made durable: one package for each library."""

"""Linking: names, flow of types, checks and rewriting, in one pass over each body."""

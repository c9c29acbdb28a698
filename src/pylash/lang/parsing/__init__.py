"""Parsing: from text to tokens, from tokens to a tree, with problems and hints."""

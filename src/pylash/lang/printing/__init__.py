"""Formatting: from a tree to text in the standard layout."""

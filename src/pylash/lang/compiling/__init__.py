"""From a linked tree to Python functions."""

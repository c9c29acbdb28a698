"""From a tree to text, the one way it is written."""

"""Lashlang in an app: modules that are linked against its tools, and run as its processes."""

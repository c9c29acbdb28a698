"""Lashlang in an app: modules are linked against its tools, and run as its processes."""

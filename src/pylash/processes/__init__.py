"""Processes: definitions, operations, execution, handles, triggers."""

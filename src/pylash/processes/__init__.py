"""Processes: definitions, contexts, execution, handles, triggers."""

"""Executes runs on any host: the effect boundary, branches, records, and how a run ends."""

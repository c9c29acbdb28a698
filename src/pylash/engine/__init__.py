"""Executes runs on any host: the effect boundary, runs in memory, records, and how tasks wait for the store."""

"""Benchmarks: pylash beside the raw databases and its peers, in one run (``python -m benchmarks``)."""

"""State machines without I/O: the effects in flight, a run while it is executed, and the worker that executes runs."""

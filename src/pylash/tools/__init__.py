"""Tools: functions that a model, a process or a workflow calls, and one call of them."""

"""The operations of a process: its context, steps, tool calls, completions and turns of sessions."""

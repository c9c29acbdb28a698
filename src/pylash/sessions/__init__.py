"""Sessions: turns, model calls, histories, subagents and listeners."""

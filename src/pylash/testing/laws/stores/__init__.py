"""Laws of stores: runs, journals, waits, processes, sessions, triggers."""

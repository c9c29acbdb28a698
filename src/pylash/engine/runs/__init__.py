"""One run in memory: its branches, the driver of its machine, how it begins, and the ports of what executes and ends it."""

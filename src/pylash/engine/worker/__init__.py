"""The worker: claims runs, executes them in slots, parks them, and gives them up in order."""

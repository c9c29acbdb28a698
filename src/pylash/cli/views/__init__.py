"""Views of runs on the command line: lists, one run, its events, and its timeline."""

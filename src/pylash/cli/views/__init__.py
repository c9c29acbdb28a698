"""What the command line shows of runs: lists, one run, its events, drawn as a timeline."""

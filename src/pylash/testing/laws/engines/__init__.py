"""Laws of engines: what executes the runs of an app."""

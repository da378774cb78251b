"""Each request as a whole: its id, and its line in the log."""

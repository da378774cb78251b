"""Chat completions: the same runs and sessions, for clients that send all messages each time."""

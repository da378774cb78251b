"""Streams: an in-process hub passes events and deltas on at once; the log fills what a reader missed."""

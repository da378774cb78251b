"""A run as a response: the object, and the stream of how it came about."""

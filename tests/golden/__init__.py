"""Databases as released versions left them. Each is kept for good, and has to be read by every later version."""

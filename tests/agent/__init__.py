"""The agent room: what a routine is written in."""

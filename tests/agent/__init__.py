"""The agent package: what a routine is written in."""

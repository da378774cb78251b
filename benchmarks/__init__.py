"""Measure the cost of a turn, as a ratio to a bare floor that stores nothing."""

"""What a turn costs, as a ratio to a bare floor that stores nothing."""

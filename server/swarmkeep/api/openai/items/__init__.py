"""Items: their ids, what callers send as such, and how messages are shown as such."""

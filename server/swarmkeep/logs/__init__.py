"""Log lines: what they know of the request and the run that they belong to, and how they are written."""

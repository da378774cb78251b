"""One file for each resource of the URL."""

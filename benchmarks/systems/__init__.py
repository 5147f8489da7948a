"""Starts the servers of the compared systems as processes."""

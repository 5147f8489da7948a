"""The report of a run: its numbers and its tables."""

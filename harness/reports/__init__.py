"""The report of a run: its numbers and its tables, and the writing of pages."""

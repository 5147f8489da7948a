"""The report of a run, with its numbers and tables, and the functions that write pages."""

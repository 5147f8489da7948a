"""The clients of a run and what they do."""

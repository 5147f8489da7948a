"""The clients of a run and their operations."""

"""Backups: a snapshot of the store fetched from a member, and the file that it becomes."""

"""File operations: the interface, its implementations on a thread and in memory, and the deletion of large files.

This package does not interpret the content of files. The formats are in `storage.wal`, `storage.snapshots` and
`storage.folder`.
"""

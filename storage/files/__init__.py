"""File operations: the interface, its implementation on a thread, and the deletion of large files.

This package does not know what files contain. The formats are in `storage.wal`, `storage.snapshots` and
`storage.folder`.
"""

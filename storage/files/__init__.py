"""File operations: the interface, its implementation on a thread, and the deletion of large files.

The code here knows operations on files, but nothing of the content of files. Formats belong to `wal`, `snapshots` and
`folder`.
"""

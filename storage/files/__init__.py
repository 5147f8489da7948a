"""File operations: the interface, its implementation on a thread, and the deletion of large files.

Here belongs code that knows operations on files and nothing of their content. Formats belong to `wal`, `snapshots` and
`folder`.
"""

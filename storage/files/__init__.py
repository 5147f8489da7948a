"""What the disk is asked to do: the interface, the one that runs it on a thread, and what it says of the disk.

Here belongs whatever knows of operations on files and nothing of what is in them. Formats belong to `wal`, `snapshots`
and `folder`.
"""

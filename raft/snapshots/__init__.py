"""The snapshots of one member: building, sending, receiving and installing them.

The snapshot store that the caller passes in (`raft.interfaces`) defines the format of a snapshot file.
"""

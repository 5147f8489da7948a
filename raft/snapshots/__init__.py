"""The snapshots of one member: building them, sending them to peers, receiving and installing them.

The snapshot store that the caller passes in (`raft.interfaces`) defines the format of a snapshot file.
"""

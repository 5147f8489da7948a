"""The snapshots of one member: when one is built, how it is sent to a peer, received and installed.

The format of a snapshot file is defined by the store that the caller passes in (`raft.interfaces`).
"""

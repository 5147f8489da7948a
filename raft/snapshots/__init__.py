"""The snapshots of one member: when one is built, how it is sent to a peer, received and installed.

The bytes of a snapshot file belong to the store that is handed in (`raft.interfaces`).
"""

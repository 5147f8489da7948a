"""One member without I/O: the core, its log and its state machine tied together.

Here belong the parts that need more than the protocol and less than a socket: group commit, applying, the requests of
the application, the identity of peers, the health of the disk, the status.
"""

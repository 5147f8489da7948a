"""One member without I/O: the core, its log and its state machine tied together, and what is said of them.

Here belongs what needs more than the protocol and less than a socket: group commit, applying, requests of the program
around it, the identity of peers, the health of the disk.
"""

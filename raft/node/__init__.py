"""One member without I/O: the parts that connect the core with its log and its state machine.

This package contains the parts that belong neither to the protocol nor to the network: group commit, the application of
entries, the requests of the application, the identity of peers, the health of the disk, and the status.
"""

"""One member without I/O: the parts that connect the core with its log and its state machine.

This package contains what is neither protocol nor network: group commit, the application of entries, the requests of
the application, the identity of peers, the health of the disk, the status.
"""

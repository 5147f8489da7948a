"""One member without I/O: the core, its log and its state machine tied together.

This package contains the parts that are neither protocol nor network: group commit, applying, the requests of the
application, the identity of peers, the health of the disk, the status.
"""

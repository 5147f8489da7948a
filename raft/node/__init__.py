"""One member without I/O: the core, its log and its state machine tied together.

This chapter holds what is neither protocol nor network: group commit, applying, the requests of the application, the
identity of peers, the health of the disk, the status.
"""

"""The replicated state machine: keys, sessions and leases, the commands that change them, and snapshots of the state.

This package is deterministic: it uses no clock, no I/O, and no order that depends on hashing.
"""

"""The replicated state machine: keys, sessions and leases, the commands that change them, and snapshots of the state.

Everything here is deterministic: no clock, no I/O, no order that depends on hashing.
"""

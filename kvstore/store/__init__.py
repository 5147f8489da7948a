"""The replicated state machine: keys, sessions and transactions, applied entry by entry, and their snapshots.

Everything here is deterministic: no clock, no I/O, no order that depends on hashing.
"""

"""Snapshots on disk: their format, the writers that build or receive one, and the store that keeps them.

Only the state machine interprets its chunks; this package handles them as bytes.
"""

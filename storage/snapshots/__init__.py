"""Snapshots on disk: their format, the writers that build or receive one, and the store that keeps them.

Only the state machine knows what its chunks *mean*; here they are just bytes.
"""

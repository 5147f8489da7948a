"""Snapshots on disk: their format, the writers that build or receive one, and the store that keeps them.

The *meaning* of a snapshot belongs to the state machine, whose chunks are just bytes here.
"""

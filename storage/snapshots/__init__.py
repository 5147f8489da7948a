"""Snapshots on disk: their format, the writers that build or receive one, and the store that keeps them.

What a snapshot *means* belongs to the state machine, whose chunks are bytes here.
"""

"""Snapshots on disk: their format, the writers that build or receive a snapshot, and the store of a node's snapshots.

Only the state machine interprets the chunks of a snapshot; this package handles them as bytes.
"""

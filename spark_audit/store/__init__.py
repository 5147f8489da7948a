"""Checks all keys of a run together, in the order of revisions.

Replays the whole store, and matches unknown writes with free revisions.
"""

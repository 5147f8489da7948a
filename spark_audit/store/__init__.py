"""The checks of all keys together, in the order of revisions.

The package replays the store, and matches unknown writes with free revisions.
"""

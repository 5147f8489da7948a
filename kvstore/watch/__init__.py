"""Watches on one member, sans-I/O: who wants to hear of which keys, and how far each of them has been served.

A hub follows the history of the store in slices of its own, so a write does nothing for watches.
"""

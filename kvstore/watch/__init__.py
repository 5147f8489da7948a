"""Watches on one member, sans-I/O: which keys each watch covers, and which events have been sent for it.

A hub follows the history of the store in slices of its own, so a write does no work for watches.
"""

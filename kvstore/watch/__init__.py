"""Watches on one member, without I/O: the keys of each watch, and the events that have been sent for the watch.

A hub follows the history of the store in separate steps, so a write does no work for watches.
"""

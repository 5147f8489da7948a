"""Exhaustive search: the production core in a small world (few members, terms, entries, …), with all orders of events.

See docs/internals/simulation.md#exhaustive-mode.
"""

"""The members of a cluster: a configuration, the history of configurations of one log, and membership changes.

How a leader carries a change out belongs to `core`.
"""

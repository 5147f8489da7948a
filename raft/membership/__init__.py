"""The members of a cluster: a configuration, the history of configurations of one log, and membership changes.

The steps by which a leader carries out a change are in `raft.core`.
"""

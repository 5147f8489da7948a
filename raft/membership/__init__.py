"""The members of a cluster: a configuration, the history of configurations of one log, and membership changes.

`raft.core` contains the steps by which a leader carries out a change.
"""

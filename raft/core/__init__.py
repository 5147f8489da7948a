"""The protocol itself: elections, replication, commitment, reads, leases and changes of membership of one member.

`RaftCore` takes events and returns their effects as one `Ready`. Nothing in this package uses a disk, a clock or a
connection; `raft.node` and `raft.runtime` carry out the effects.
"""

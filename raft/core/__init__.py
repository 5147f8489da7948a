"""The protocol itself: elections, replication, commitment, reads, leases and changes of membership of one member.

`RaftCore` takes events and gives one `Ready`. Nothing here knows of a disk, a clock or a connection; what carries out
the effects belongs to `node` and `runtime`.
"""

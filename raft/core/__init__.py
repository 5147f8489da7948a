"""The protocol itself: elections, replication, commitment, reads, leases and changes of membership of one member.

`RaftCore` takes events and returns their effects as one `Ready`. Nothing here knows of a disk, a clock or a connection;
`node` and `runtime` carry out the effects.
"""

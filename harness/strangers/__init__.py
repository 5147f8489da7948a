"""Strangers: programs that connect to the ports of a member, but are not honest clients, peers or monitors.

The module `wire` makes the bytes of strangers without the code of the client or the node. Strangers can therefore send
messages that a check in this code would refuse. The module `crowd` has the table of all kinds of strangers. The module
`process` runs the strangers in a separate process. Faults of the operating system or of a disk belong to
`harness.nemesis`, not here.
"""

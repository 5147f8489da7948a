"""Strangers: connections to the ports of a member that come from no honest client, peer or monitor.

The module `wire` makes the bytes of strangers without the code of the client or the node, so no check in this code can
prevent a message. The module `crowd` has the table of all kinds of strangers. The module `process` runs the strangers
in a separate process. Faults of the operating system or of a disk belong to `harness.nemesis`, not here.
"""

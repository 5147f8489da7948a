"""Strangers: connections to the ports of a member that come from no honest client, peer or monitor.

Strangers send bytes that `wire` makes without the code of the client or the node, so no check in that code can stop
what they send. `crowd` has the table of all kinds of strangers; `process` runs the strangers in a
process of their own. Faults of the operating system or of a disk belong to `harness.nemesis`, not here.
"""

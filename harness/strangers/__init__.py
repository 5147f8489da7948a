"""Strangers: connections to the ports of a member that come from no honest client, peer or monitor.

They speak bytes of their own making (`wire`) and use nothing of the client or of the node, so that no check of ours
stands between them and a member. `crowd` has the table of all kinds; `process` runs them in a process of their own.
Faults of the operating system or of a disk belong into `harness.nemesis`, not here.
"""

"""Strangers: connections to the ports of a member that come from no honest client, peer or monitor.

They make their bytes themselves (`wire`) and use no code of the client or the node, so that no check of the product
stands between them and a member. `crowd` has the table of all kinds; `process` runs them in a process of their own.
Faults of the operating system or of a disk belong to `harness.nemesis`, not here.
"""

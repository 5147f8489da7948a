"""Strangers: what reaches the ports of a member without being a client, a peer or a monitor that means well.

They speak bytes of their own making (`wire`) and use nothing of the client or of the node, so that no check of ours
stands between them and a member. `crowd` has the table of all kinds; `child` runs them in a process of their own. What
the operating system or a disk does to a member belongs into `harness.nemesis`, not here.
"""

"""Consumers of the committed log: they read the changes under a prefix in order, and store their position.

`group_keys` is the layout of a group in the store. `shares` decides, without I/O, which member takes which part of the
keys. `consumer` reads records and moves the position. `position_transaction` moves the position together with other
writes. `members` divides the shares of a group among its members, and `group_status` reads the state of a group.
General locks and leases are in `kvstore.recipes`.

See docs/concepts/consumers.md.
"""

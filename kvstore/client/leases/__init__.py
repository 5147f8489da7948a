"""The calls of a client about leases (`lease_calls`), and renewals that are sent together (`renewals`). A lease that is
kept alive during a block is in `kvstore.recipes`.
"""

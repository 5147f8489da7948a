"""The client: a state machine without I/O that finds the leader and retries safely (`core`), the trio tasks that run it
(`pump`), and the operations of an application (`client`). `watches` and `leases` are packages of their own.
"""

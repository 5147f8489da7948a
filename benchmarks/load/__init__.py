"""Puts load on a system through the system's own protocol: plans, workloads, and the bytes of each protocol."""

"""Load on a system through its own protocol: plans, workloads, and the bytes of each dialect."""

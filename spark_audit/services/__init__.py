"""Judges watches, leases, locks, and reads at a revision. The order of operations on a key is judged elsewhere."""

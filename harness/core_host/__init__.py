"""Runs one Raft core with a simulated disk, for the model checker and the scenarios, and names its messages."""

"""Runs one Raft core, or one whole node, with a simulated disk, for the model checker and the scenarios, and names its
messages."""

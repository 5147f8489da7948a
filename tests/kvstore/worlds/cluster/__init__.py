"""Calls about the members of a cluster, its leader, its state and its log, in each world."""

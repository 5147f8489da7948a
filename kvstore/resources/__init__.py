"""Bounded resources of a member, and what yields when one is exhausted: descriptors, connections, memory, sessions."""

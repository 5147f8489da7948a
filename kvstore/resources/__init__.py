"""Bounded resources of a member, and how it makes room in them: descriptors, connections, memory, sessions."""

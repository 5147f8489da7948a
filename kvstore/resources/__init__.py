"""The bounded resources of a member: descriptors, connections, memory, sessions. Some modules also free resources."""

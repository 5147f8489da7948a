"""What a member may use, and who gives way when there is no more: descriptors, connections, memory, sessions."""

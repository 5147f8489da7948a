"""Recording the clients of a store: what they see is judged, also after a kill, in several processes, and at bounds."""

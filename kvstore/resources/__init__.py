"""The bounded resources of a member (descriptors, connections, memory, sessions), and how it frees some of them."""

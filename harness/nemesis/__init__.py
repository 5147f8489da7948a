"""The faults of a recorded run: which ones this machine can make, when they come, and how each is carried out."""

"""The faults of a recorded run: which ones this machine can make, when they happen, and how each is carried out."""

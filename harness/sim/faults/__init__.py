"""The faults of a run: when they happen, which machines they hit, and how they are healed."""

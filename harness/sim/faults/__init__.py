"""The faults of a run: when they happen, whom they hit, and how they are healed."""

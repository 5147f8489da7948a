"""The faults of a recorded run: the faults that this machine can make, their schedule, and their execution."""

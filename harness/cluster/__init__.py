"""A cluster of real processes on one machine: members with their disks, clocks and network, and their status.

The faults of these processes are in `harness.nemesis`.
"""

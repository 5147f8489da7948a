"""A cluster of real processes on one machine: members with their disks, clocks and network, and their status.

What is done to them, and when, belongs into `harness.nemesis`.
"""

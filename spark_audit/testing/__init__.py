"""Generates histories for tests, and injects faults into histories."""

"""Measurements of a machine and of processes, and their statistics."""

"""Measures a machine and its processes, and computes statistics of measurements."""

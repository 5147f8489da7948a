"""Measures the speed of the audit: makes histories that are linearizable by construction, and measures the time of each
kernel and each command on them.
"""

"""Measures the speed of the audit: histories that are linearizable by construction, and the time of each kernel and
command on them.
"""

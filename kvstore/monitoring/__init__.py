"""Monitoring of one member: health probes, metrics, and the format of its log.

All parts only count and observe. They do not change the behaviour of the member.
"""

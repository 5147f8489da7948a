"""Monitoring of one member: health probes, metrics, and the format of its log.

Monitoring does not change the behaviour of the member.
"""

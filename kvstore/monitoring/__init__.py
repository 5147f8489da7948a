"""Monitoring of one member: health probes, metrics, and the format of its log.

All parts only count and observe; none changes what the member does.
"""

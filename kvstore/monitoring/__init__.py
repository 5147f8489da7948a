"""Monitoring of one member: health probes, metrics, and the format of its log.

The parts count and look; no part changes what the member does.
"""

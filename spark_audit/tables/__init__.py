"""Histories as Arrow tables: reading, checking, ordering and sharing them out.

Both engines use it; it knows neither.
"""

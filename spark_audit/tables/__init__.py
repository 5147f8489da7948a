"""Histories as Arrow tables: reading, checking, ordering, shuffling.

Both engines use this code. This package imports neither `local` nor `spark`.
"""

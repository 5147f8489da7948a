"""Histories as Arrow tables: reading, checking, ordering, shuffling.

The code that both engines share. It imports neither `local` nor `spark`.
"""

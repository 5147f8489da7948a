"""Reads, checks, orders and shuffles histories as Arrow tables.

The local and the Spark engine use this package, which imports neither `local` nor `spark`.
"""

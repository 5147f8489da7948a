"""Audits a growing history, part by part.

A part ends at a *cut*, which is a position in the order of revisions (`follow.py`). The state after the cut is saved,
so that the next run of the command audits only the rows that were added since.
"""

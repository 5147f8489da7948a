"""The audit of a growing history.

The package reads the growing files, and audits the rows from each cut to the next one (a cut is a position in the order
of revisions, see `follow.py`). It saves its state, so that the next run of the command continues from there.
"""

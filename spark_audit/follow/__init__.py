"""The audit of a growing history.

The package reads the growing files, audits the parts between two cuts, and stores the state between two runs of the
command.
"""

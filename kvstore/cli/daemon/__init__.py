"""`hwm init` and `hwm serve`: the options of a member and their sources, and the process in which it runs.

Commands that talk to a running cluster are one folder above.
"""

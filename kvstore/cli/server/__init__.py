"""`hwm init` and `hwm serve`: the options of a member, and its process.

Commands that talk to a running cluster are one folder above.
"""

"""Decides one key, in Python: witness, search and counterexample."""

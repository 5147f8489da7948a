"""The decision of one key, in Python: witness, search, counterexample."""

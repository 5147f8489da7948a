"""Decides one key, in plain Python: by a witness, a search, or a counterexample."""

"""Adapters with their real stores: clean runs are linearizable, each error has its outcome, and old reads are found."""

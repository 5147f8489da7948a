"""Runs with real processes: settings, the run itself, and what is made of one (soak, demo, fail-over, strangers)."""

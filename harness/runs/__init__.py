"""Runs with real processes: the settings, one recorded run, and larger programs (soak, demo, failover, strangers)."""

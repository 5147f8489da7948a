"""Runs with real processes: settings, one recorded run, and larger programs (soak, demo, failover, strangers)."""

"""Compares systems: carries out a plan of measurements on each, and shows the results in tables and plots."""

"""Measurements of this project alone."""

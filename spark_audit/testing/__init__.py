"""Histories for tests: generated ones, and faults put into them."""

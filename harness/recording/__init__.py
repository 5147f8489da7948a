"""Histories of what clients saw: writing, reading, checking and falsifying them."""

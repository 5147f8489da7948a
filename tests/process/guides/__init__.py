"""Guides that are run as they are written: the tutorial, the client page, and recipes for operators."""

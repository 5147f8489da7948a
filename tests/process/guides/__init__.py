"""Tests that run guides as they are written: the tutorial, the client page, and recipes for operators."""

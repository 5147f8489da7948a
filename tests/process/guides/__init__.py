"""Tests that run guides exactly as they are written: the tutorial, the client page, and recipes for operators."""

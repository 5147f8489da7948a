"""Holders of locks as processes that are stopped, and the program that they run."""

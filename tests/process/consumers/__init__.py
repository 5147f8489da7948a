"""Consumers of a group as processes that are killed, and the program that they run."""

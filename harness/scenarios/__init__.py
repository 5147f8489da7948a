"""Scenarios: text files with single steps of the protocol, which the production core carries out.

docs/internals/testing.md describes the language of these files.
"""

"""Named scenarios: short plays of the protocol, readable by people, on the production core.

docs/internals/testing.md describes their language.
"""

"""Structural fuzzing: seeded, in process, one file per surface that reads what the outside wrote.

Each surface has one test with two sizes: 10⁴ inputs in `make test`, 10⁶ in `make test-slow` (`campaign.sizes`). An
input is mostly a valid message with one or more places changed (`structures`), because random bytes rarely get past
the first check. A test of a surface asserts three things for every input: nothing but the documented errors comes out,
the state that the input must not touch is unchanged, and honest traffic beside it is still served. Tests of single
defects belong beside the code that they test, not here.
"""

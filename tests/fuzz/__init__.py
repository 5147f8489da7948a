"""Structural fuzzing in the test process, with seeds. A surface is a part of the program that reads bytes from outside.
Each surface has a file here.

Each surface has one test that runs in two sizes: 10⁴ inputs in `make test`, 10⁶ in `make test-slow` (`campaign.sizes`).
An input is mostly a valid message with one or more places changed (`structures`), because random bytes rarely get past
the first check. A test of a surface asserts three things for every input: only the documented errors are raised, the
state that the input must not touch is unchanged, and honest traffic at the same time is still served. Tests of single
defects belong beside the code that they test, not here.
"""

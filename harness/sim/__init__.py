"""The deterministic simulator: whole clusters of production nodes in virtual time, one run per seed.

Its chapters, each using only those before it: `engine`, `plan`, `world`, `checks`, `faults`, `load` and `diagram`. The
files beside them make a run of these parts, run many, shrink what fails, and show it.
"""

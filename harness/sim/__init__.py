"""The deterministic simulator: whole clusters of production nodes in virtual time, one run per seed.

Its packages are `engine`, `plan`, `world`, `checks`, `faults`, `load` and `diagram`; each uses only those before it.
The modules beside them put a run together, run many seeds, shrink a failing plan, and show the results.
"""

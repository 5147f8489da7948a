"""The deterministic simulator: whole clusters of production nodes in virtual time, one run per seed.

The packages of the simulator are `engine`, `plan`, `world`, `checks`, `faults`, `load` and `diagram`. A package imports
only its own modules and packages that come earlier in this list. The modules in this folder assemble a run, run many
seeds, shrink a failing plan, and show the results.
"""

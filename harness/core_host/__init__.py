"""One core with a disk and named messages around it, for the model checker and the scenarios."""

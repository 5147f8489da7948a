"""Writes, reads, checks and falsifies the histories of runs: what each client requested and was answered."""

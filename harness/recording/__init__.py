"""Writes, reads, checks and falsifies the histories of runs: the requests and the answers of all clients."""

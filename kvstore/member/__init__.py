"""One running member: its configuration, its data folder (made new, joined or restored), and the parts it runs.

This chapter puts the server, the monitoring and the engine together. `hwm serve` and `open_node` stand above it.
"""

"""One running member: its configuration, its data folder (new, joined or restored), and its parts.

This package puts the server, the monitoring and the engine together. `hwm serve` and `open_node` use it.
"""

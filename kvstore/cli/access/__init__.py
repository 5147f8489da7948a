"""`hwm user`, `hwm role` and `hwm auth`: who may do what in a cluster."""

"""`hwm user`, `hwm role` and `hwm auth`: control the access to a cluster."""

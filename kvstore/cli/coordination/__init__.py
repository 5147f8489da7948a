"""Commands of `hwm` with which programs coordinate: leases, locks, elections, sessions and groups of consumers."""

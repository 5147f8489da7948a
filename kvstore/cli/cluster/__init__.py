"""Commands of `hwm` that show and change a cluster: the state of its members, its membership and its limits."""

"""Client ports of etcd with TLS, as processes."""

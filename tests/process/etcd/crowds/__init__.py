"""Crowds of etcd's clients: more connections, streams and watches than a usual client has."""

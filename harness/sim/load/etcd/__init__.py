"""Clients that speak etcd's API to simulated members, and the ports that serve them. Needs the extra `etcd`."""

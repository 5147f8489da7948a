"""The port for etcd's clients, against a member in the same process: each test speaks gRPC or JSON to a real socket."""

"""What etcd's clients saw while members were killed: recorded by foreign clients, and audited."""

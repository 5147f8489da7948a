"""Programs and clients of others, written for etcd, run unchanged against our members."""

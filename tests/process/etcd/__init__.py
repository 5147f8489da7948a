"""Tests with foreign clients: programs and libraries that others wrote for etcd's v3 interface. `HWM_TEST_REAL_ETCD=1`
runs them against real etcd, which proves that they ask for what etcd does; otherwise they run against our members."""

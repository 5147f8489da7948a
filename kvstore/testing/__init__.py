"""Help for the tests of programs that use the store: a store in memory, three members with faults, and fixtures.

    pytest_plugins = ["kvstore.testing"]      # In conftest.py: the fixtures hwm_store, hwm_clock and hwm_cluster.

Only `kvstore.testing.fixtures` imports pytest, and pytest loads it when this module is named as a plugin.

PYTEST_DONT_REWRITE: this word prevents a warning of pytest if a conftest.py imports this module first. There are no
assertions here that pytest would have to rewrite.
"""

from kvstore.testing.clock import MovableClock
from kvstore.testing.cluster import Cluster, ClusterStuck
from kvstore.testing.memory_store import MemoryStore, open_memory_node

pytest_plugins = ("kvstore.testing.fixtures",)

__all__ = ["Cluster", "ClusterStuck", "MemoryStore", "MovableClock", "open_memory_node"]

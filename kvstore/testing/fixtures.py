"""The fixtures for pytest. All of them are synchronous, so tests on trio, on asyncio and in plain threads can use
them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore.testing.clock import MovableClock
from kvstore.testing.cluster import Cluster
from kvstore.testing.memory_store import MemoryStore


@pytest.fixture
def hwm_store() -> Iterator[MemoryStore]:
    """A store in memory: one real member, without a disk and without a port, whose time a test moves forward."""
    with MemoryStore() as store:
        yield store


@pytest.fixture
def hwm_clock(hwm_store: MemoryStore) -> MovableClock:
    """The clock of `hwm_store`. With pytest-trio, a test that uses this fixture runs with this clock."""
    return hwm_store.clock


@pytest.fixture
def hwm_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three real members with data folders in `tmp_path` and ports on loopback. A test can stop them and slow them
    down."""
    with Cluster(tmp_path / "members") as cluster:
        yield cluster

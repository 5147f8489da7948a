"""The folders of the tests of the store, and their clean-up."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kvstore.support.in_memory_cluster import HeldFiles

MEMORY = Path("/dev/shm")


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """The folder of a test of the store, in memory if the machine has such a folder. Hundreds of tests start members,
    which sync each write. The syncs of a disk are tested in tests/storage, and members on a disk in tests/process."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def _close_files_of_in_memory_clusters() -> Iterator[None]:
    """A cluster of three members opens some thirty files. Tests that limit the descriptors of this process would count
    these files."""
    yield
    while HeldFiles.opened:
        HeldFiles.opened.pop().close()

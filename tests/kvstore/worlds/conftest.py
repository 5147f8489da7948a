"""A member for the scenarios of one file, and names that no other scenario has."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kvstore.conftest import MEMORY
from tests.kvstore.worlds.world import MemberThread

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def member_address() -> Iterator[str]:
    """The client address of a member that all scenarios of a file share."""
    with (
        tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder,
        MemberThread(Path(folder) / "s1") as member,
    ):
        yield member.address


@pytest.fixture
def name() -> str:
    """A prefix of keys that belongs to one scenario."""
    return f"scenario-{next(_numbers)}/"

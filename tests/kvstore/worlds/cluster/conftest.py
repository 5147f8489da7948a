"""Three members that all scenarios of this folder share, and which of them leads."""

from __future__ import annotations

import itertools
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kvstore import Member
from kvstore.testing import Cluster
from tests.kvstore.conftest import MEMORY

_numbers = itertools.count(1)


@pytest.fixture(scope="package")
def cluster() -> Iterator[Cluster]:
    """Three members. A scenario leaves them as it found them, except that another of them may lead."""
    with (
        tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder,
        Cluster(Path(folder) / "members") as cluster,
    ):
        yield cluster


@pytest.fixture
def leader(cluster: Cluster) -> str:
    """The id of the member that leads."""
    return cluster.wait_for_leader()


@pytest.fixture
def follower(leader: str) -> str:
    """The id of a member that does not lead."""
    return "s1" if leader != "s1" else "s2"


@pytest.fixture
def new_id() -> str:
    """The id of a member that has never been a member: an id is never used again."""
    return f"new{next(_numbers)}"


@pytest.fixture
def closed_ports() -> Iterator[list[str]]:
    """Addresses at which nobody listens. They are taken, so no other program listens there later."""
    with ExitStack() as stack:
        taken = [stack.enter_context(socket.socket()) for _ in range(4)]
        for each in taken:
            each.bind(("127.0.0.1", 0))
        yield [f"127.0.0.1:{each.getsockname()[1]}" for each in taken]


@pytest.fixture
def newcomer(new_id: str, closed_ports: list[str]) -> Member:
    """A member that can be added, and that does not run."""
    return Member(new_id, closed_ports[0], closed_ports[1])

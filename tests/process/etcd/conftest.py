"""Fixtures for tests with foreign clients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

import pytest

from tests.process.etcd.members import empty, running_members, why_not

_numbers = count(1)


@pytest.fixture(scope="package")
def etcd_endpoints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[str]]:
    """The addresses of three members, which all tests share. A test writes only below its own `prefix`."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with running_members(tmp_path_factory.mktemp("etcd")) as endpoints:
        yield endpoints


@pytest.fixture(scope="module")
def etcd_endpoint(etcd_endpoints: Sequence[str]) -> str:
    """The address (host:port) of one of the three members."""
    return etcd_endpoints[0]


@pytest.fixture(scope="package")
def _emptied_endpoints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[str]]:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with running_members(tmp_path_factory.mktemp("etcd")) as endpoints:
        yield endpoints


@pytest.fixture
def own_endpoints(_emptied_endpoints: Sequence[str]) -> Iterator[Sequence[str]]:
    """The addresses of three members with an empty store, for one test at a time: for a test that needs an empty store,
    or changes what holds for all keys. Only the revision tells that there were tests before."""
    yield _emptied_endpoints
    empty(_emptied_endpoints)


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """A prefix of keys that only this test uses."""
    return f"{request.node.originalname}-{next(_numbers)}/"

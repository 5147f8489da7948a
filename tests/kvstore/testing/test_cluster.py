"""Three members and their faults: what happens to a program during each fault, in each world, and the end of each
fault."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

import kvstore
import kvstore.asyncio
import kvstore.blocking
from kvstore import OutcomeUnknown, Unavailable
from kvstore.testing import Cluster, ClusterStuck
from kvstore.testing import cluster as cluster_module
from tests.kvstore.testing.conftest import ProgramWorld
from tests.kvstore.worlds.world import AsyncFace

pytestmark = pytest.mark.timeout(90)

SHORT_SECONDS = 0.5
"""A deadline that passes before an answer comes. Within this time, a request certainly reaches the leader."""


def connect(program: ProgramWorld, url: str) -> Any:
    """A client as a program makes it, from a URL."""
    if program.name == "threads":
        return AsyncFace(kvstore.blocking.connect(url))
    return (kvstore if program.name == "trio" else kvstore.asyncio).connect(url)


def test_a_program_goes_on_without_the_leader(hwm_cluster: Cluster, program: ProgramWorld) -> None:
    async def scenario() -> None:
        async with connect(program, hwm_cluster.url) as client:
            await client.put("before", "1")
            with hwm_cluster.without_leader() as gone:
                await client.put("meanwhile", "2", deadline_seconds=20)
                assert (await client.get("before")).value == b"1"
                assert hwm_cluster.wait_for_leader() != gone
                with pytest.raises(Unavailable):
                    await client.status(gone, deadline_seconds=SHORT_SECONDS)
            assert (await client.status(gone)).node_id == gone
            assert (await client.get("meanwhile")).value == b"2"

    program.run(scenario)


def test_a_program_is_told_that_there_is_no_quorum(hwm_cluster: Cluster, program: ProgramWorld) -> None:
    """A read fails as `Unavailable`, because it has no effect. A write that reached the leader may still take
    effect."""

    async def scenario() -> None:
        async with connect(program, hwm_cluster.url) as client:
            await client.put("before", "1")
            with hwm_cluster.without_quorum() as alone:
                with pytest.raises((OutcomeUnknown, Unavailable)):
                    await client.put("meanwhile", "2", deadline_seconds=SHORT_SECONDS)
                with pytest.raises(Unavailable):
                    await client.get("before", deadline_seconds=SHORT_SECONDS)
                assert (await client.status(alone)).node_id == alone
            await client.put("after", "3", deadline_seconds=20)
            assert (await client.get("before")).value == b"1"

    program.run(scenario)


def test_a_program_waits_for_a_slow_store(hwm_cluster: Cluster, program: ProgramWorld) -> None:
    async def scenario() -> None:
        async with connect(program, hwm_cluster.url) as client:
            await client.put("before", "1")
            with hwm_cluster.slow(0.8):
                began = time.monotonic()
                await client.put("meanwhile", "2")
                assert time.monotonic() - began >= 0.8
                with pytest.raises(OutcomeUnknown):
                    await client.put("late", "3", deadline_seconds=SHORT_SECONDS)
            assert (await client.get("meanwhile")).value == b"2"

    program.run(scenario)


def test_a_store_that_is_slower_than_a_client_waits_is_as_good_as_gone(hwm_cluster: Cluster) -> None:
    """If a member has sent nothing for a second, a client ends the connection and tries another member."""
    with kvstore.blocking.connect(hwm_cluster.url) as client:
        client.put("before", "1")
        with hwm_cluster.slow(1.5), pytest.raises(OutcomeUnknown, match="has said nothing for 1"):
            client.put("meanwhile", "2", deadline_seconds=3)
        client.put("after", "3", deadline_seconds=20)


def test_the_delay_of_an_answer_is_the_same_for_many_at_a_time(hwm_cluster: Cluster) -> None:
    """The fault delays each answer separately: 20 calls at the same time do not wait for one another."""

    async def scenario() -> None:
        async with kvstore.asyncio.connect(hwm_cluster.url) as client:
            await client.put("before", "1")
            with hwm_cluster.slow(0.5):
                began = time.monotonic()
                await asyncio.gather(*(client.put(f"{n}", "x") for n in range(20)))
                assert 0.5 <= time.monotonic() - began < 5

    asyncio.run(scenario())


def test_nothing_that_was_acknowledged_is_lost_in_a_row_of_faults(hwm_cluster: Cluster) -> None:
    with kvstore.blocking.connect(hwm_cluster.url) as client:
        for number in range(3):
            with hwm_cluster.without_leader():
                client.put(f"key/{number}", "x", deadline_seconds=20)
        with hwm_cluster.without_quorum():
            pass
        assert [each.key for each in client.range(prefix="key/").items] == [b"key/0", b"key/1", b"key/2"]


def test_a_fault_in_a_fault_ends_before_the_fault_around_it(hwm_cluster: Cluster) -> None:
    """The end of the inner fault waits only for the members that run again after it."""
    with kvstore.blocking.connect(hwm_cluster.url) as client:
        client.put("before", "1")
        for inner in (hwm_cluster.without_leader, hwm_cluster.without_quorum):
            with hwm_cluster.without_leader() as first:
                with inner() as second:
                    assert second != first
                    with pytest.raises((OutcomeUnknown, Unavailable)):
                        client.put("meanwhile", "2", deadline_seconds=SHORT_SECONDS)
                assert hwm_cluster.wait_for_leader() != first
                client.put("between", "3", deadline_seconds=20)
            assert client.status(first).node_id == first
        assert client.get("before").value == b"1"


def test_a_delay_in_a_delay_ends_with_the_delay_around_it(hwm_cluster: Cluster) -> None:
    with kvstore.blocking.connect(hwm_cluster.url) as client:
        client.put("before", "1")
        with hwm_cluster.slow(0.3):
            with hwm_cluster.slow(0.0):
                pass
            began = time.monotonic()
            client.put("meanwhile", "2")
            assert time.monotonic() - began >= 0.3


def test_a_cluster_that_elects_no_leader_leaves_no_member_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "WAIT_SECONDS_MAX", 0.0)
    with pytest.raises(ClusterStuck, match="a member leads a majority"), Cluster(tmp_path):
        raise AssertionError("it was entered")
    assert "kvstore cluster" not in [thread.name for thread in threading.enumerate()]


def test_a_fault_ends_when_the_test_fails_in_it(hwm_cluster: Cluster) -> None:
    with pytest.raises(KeyError), hwm_cluster.without_quorum():
        raise KeyError("a failure of the test")
    with pytest.raises(KeyError), hwm_cluster.slow(3600):
        raise KeyError("a failure of the test")

    with kvstore.blocking.Client(hwm_cluster.endpoints, deadline_seconds=20) as client:
        client.put("a", "1")


def test_a_delay_is_not_negative(hwm_cluster: Cluster) -> None:
    with pytest.raises(ValueError, match="cannot come -1 s later"), hwm_cluster.slow(-1):
        raise AssertionError("it was entered")


def test_members_that_cannot_elect_a_leader_are_named(hwm_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "WAIT_SECONDS_MAX", 1.5)
    wanted = "in 1.5 s: a member leads a majority; .*does not run.*follows nobody|follows nobody.*does not run"
    with hwm_cluster.without_quorum():
        with pytest.raises(ClusterStuck, match=wanted):
            _until_it_follows_nobody(hwm_cluster.wait_for_leader)
        monkeypatch.undo()


def _until_it_follows_nobody(wait: Callable[[], str]) -> None:
    """The leader notices after an election time-out that it is alone."""
    while True:
        wait()


def test_the_data_of_the_members_is_on_the_disk(tmp_path: Path) -> None:
    for _ in range(2):
        with Cluster(tmp_path) as cluster:
            assert sorted(path.name for path in tmp_path.iterdir()) == ["s1", "s2", "s3"]
            assert all((tmp_path / node_id / "meta").is_file() for node_id in ("s1", "s2", "s3"))
            assert cluster.url == f"hwm://{','.join(cluster.endpoints)}"
        tmp_path = tmp_path / "another"
        tmp_path.mkdir()


async def test_a_cluster_serves_a_test_that_runs_on_trio(hwm_cluster: Cluster) -> None:
    async with kvstore.connect(hwm_cluster.url) as client, client.watch("a") as watch:
        with hwm_cluster.without_leader():
            await client.put("a", "1", deadline_seconds=20)
            with trio.fail_after(20):
                assert (await anext(watch)).kind == "put"

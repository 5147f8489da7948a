"""Members notice if two processes run as the same member. Members do not mistake a restarted member for two
processes."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from random import Random

import pytest

from raft import Configuration, Identity, Member
from raft.protocol.hello import PROCESS_ID_BYTES
from raft.runtime.duplicate_members import DUPLICATE_SECONDS, PROCESSES_MAX, DuplicateMembers
from raft.runtime.transport import Transport
from tests.raft.runtime.test_connection_log import events
from tests.raft.runtime.test_hostile_callers import a_member, greeted
from tests.raft.runtime.test_inbound import lead
from tests.raft.support.machines import until

pytestmark = pytest.mark.timeout(30)

FIRST, COPY, LATER = (bytes([number]) * 8 for number in (1, 2, 3))


def took_over(*process_ids: bytes) -> list[tuple[str, ...]]:
    members = DuplicateMembers()
    return [members.took_over("s3", process_id, f"host-{process_id[0]}", 0.0) for process_id in process_ids]


def test_a_process_that_comes_back_after_another_one_runs_beside_it() -> None:
    assert took_over(FIRST, COPY, FIRST) == [(), (), ("host-2", "host-1")]


def test_restarts_and_connections_anew_are_no_copies() -> None:
    assert took_over(FIRST, FIRST, COPY, COPY, LATER, LATER) == [()] * 6


def test_builds_that_say_no_process_are_not_judged() -> None:
    members = DuplicateMembers()
    assert [members.took_over("s3", each, "h", 0.0) for each in (FIRST, b"", COPY, b"")] == [()] * 4
    assert members.found(0.0) == ()


def test_it_is_told_once_a_period_and_forgotten_when_it_is_over() -> None:
    members = DuplicateMembers()
    for now in (0.0, 1.0, 2.0, 3.0):
        members.took_over("s3", COPY if now % 2 else FIRST, "h", now)
    assert members.found(3.0) == ("s3",)
    assert members.took_over("s3", FIRST, "h", 4.0) == ()
    assert members.took_over("s3", COPY, "h", 2.0 + DUPLICATE_SECONDS) == ("h", "h")

    assert members.found(2.0 + 2 * DUPLICATE_SECONDS) == ()
    members.took_over("s3", FIRST, "h", 3.0 + 2 * DUPLICATE_SECONDS)
    members.forget("s3")
    assert members.found(3.0 + 2 * DUPLICATE_SECONDS) == ()


def test_of_many_processes_the_latest_are_remembered() -> None:
    many = [bytes([number]) * 8 for number in range(1, PROCESSES_MAX + 2)]

    assert took_over(*many, many[0])[-1] == ()
    assert took_over(*many, many[1])[-1] != ()


async def test_members_notice_a_started_copy_by_its_calls(caplog: pytest.LogCaptureFixture) -> None:
    """Each process replaces the connection of the other one. This happens if both of them campaign and answer."""
    caplog.set_level(logging.WARNING, "raft.transport")
    async with a_member() as s1, AsyncExitStack() as stack:
        term = 10
        for process_id in (FIRST, COPY, FIRST, COPY):
            assert s1.transport.duplicate_members == ()
            stream = await stack.enter_async_context(await greeted(s1, process_id=process_id))
            term += 1
            await lead(stream, s1, term)
        await until(lambda: s1.transport.duplicate_members == ("s2",))

    (told,) = events(caplog, "duplicate_member", "s1")
    assert told == {"peer_id": "s2", "hosts": ["127.0.0.1", "127.0.0.1"]}


async def test_a_member_that_is_started_anew_again_and_again_is_one(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "raft.transport")
    async with a_member() as s1, AsyncExitStack() as stack:
        for number in range(5):  # The copy's old connections seem alive: s1 has not learned of their end.
            stream = await stack.enter_async_context(await greeted(s1, process_id=bytes([number]) * 8))
            await lead(stream, s1, 20 + number)
        assert s1.transport.duplicate_members == ()


def test_each_process_says_another_id() -> None:
    identity = Identity(cluster_id=bytes(16), group_id=0, node_id="s1", incarnation_id=bytes(16))
    configuration = Configuration.of([Member("s1")])
    ids = {Transport(identity=identity, configuration=configuration, random=Random(1))._process_id for _ in range(3)}

    assert [len(each) for each in ids] == [PROCESS_ID_BYTES] * 3

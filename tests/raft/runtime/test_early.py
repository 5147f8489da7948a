"""Answers of quick peers, taken between two turns of the loop: nothing is lost or told twice, whoever reads."""

from __future__ import annotations

import socket

import pytest
import trio
import trio.testing

from raft.runtime import early
from raft.runtime.early import WAITS_SPARED, EarlyReader
from raft.wire import FrameSplitter, frame

pytestmark = pytest.mark.timeout(30)


def a_pair() -> tuple[trio.SocketStream, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return trio.SocketStream(trio.socket.from_stdlib_socket(ours)), theirs


class CountingPoll:
    """Stands for `select.poll()`: nothing is ever ready. `waits` are the times it was asked to wait, in ms."""

    def __init__(self) -> None:
        self.waits: list[int] = []

    def register(self, number: int, events: int) -> None: ...

    def unregister(self, number: int) -> None: ...

    def poll(self, timeout_ms: int) -> list[tuple[int, int]]:
        self.waits.append(timeout_ms)
        return []


async def test_what_has_come_is_read_and_belongs_to_whom_it_came_from() -> None:
    reader, splitter = EarlyReader(), FrameSplitter(100)
    ours, theirs = a_pair()
    async with ours:
        with theirs, reader.watched(ours, "n2", splitter, trio.CancelScope()):
            assert reader.read(may_wait=False) == []
            theirs.send(b"answer")
            ((way, data),) = reader.read(may_wait=True)
            assert (way.peer_id, way.splitter, data) == ("n2", splitter, b"answer")
            assert reader.read(may_wait=False) == []


async def test_a_frame_of_which_half_is_read_early_is_whole_for_its_reader() -> None:
    """Both feed the same splitter."""
    reader, splitter = EarlyReader(), FrameSplitter(100)
    whole = frame(b"one message")
    ours, theirs = a_pair()
    async with ours:
        with theirs, reader.watched(ours, "n2", splitter, trio.CancelScope()):
            theirs.send(whole[:7])
            ((_, data),) = reader.read(may_wait=True)
            assert list(splitter.feed(data)) == []
            theirs.send(whole[7:])
            with trio.fail_after(10):
                assert list(splitter.feed(await ours.receive_some())) == [b"one message"]


async def test_the_end_of_a_connection_is_left_to_its_reader() -> None:
    reader = EarlyReader()
    ours, theirs = a_pair()
    async with ours:
        with reader.watched(ours, "n2", FrameSplitter(100), trio.CancelScope()):
            theirs.close()
            assert reader.read(may_wait=True) == []
            with trio.fail_after(10):
                assert await ours.receive_some() == b""


async def test_a_connection_is_not_read_once_its_reader_is_gone() -> None:
    reader = EarlyReader()
    ours, theirs = a_pair()
    async with ours:
        with theirs:
            with reader.watched(ours, "n2", FrameSplitter(100), trio.CancelScope()):
                pass
            theirs.send(b"late")
            assert reader.read(may_wait=True) == []


async def test_a_stream_that_is_no_socket_is_left_alone() -> None:
    reader = EarlyReader()
    _, theirs = trio.testing.memory_stream_pair()
    with reader.watched(theirs, "n2", FrameSplitter(100), trio.CancelScope()):
        assert reader.read(may_wait=True) == []


async def test_after_a_wait_in_vain_many_are_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers that are slow, or gone, cost a lone client next to nothing."""
    poll = CountingPoll()
    monkeypatch.setattr("select.poll", lambda: poll)
    reader = EarlyReader()
    ours, theirs = a_pair()
    async with ours:
        with theirs, reader.watched(ours, "n2", FrameSplitter(100), trio.CancelScope()):
            for _ in range(2 * (WAITS_SPARED + 1)):
                reader.read(may_wait=True)

    assert poll.waits == 2 * [early.WAIT_MS, *[0] * WAITS_SPARED]


async def test_what_follows_nonsense_is_not_read() -> None:
    """Not even the next bytes of the same connection: whoever met it says so."""
    reader = EarlyReader()
    ours, theirs = a_pair()
    async with ours:
        with theirs, reader.watched(ours, "n2", FrameSplitter(100), trio.CancelScope()):
            theirs.send(b"\xff\xff\xff\xff")
            ((way, _),) = reader.read(may_wait=True)
            reader.forget(way)
            theirs.send(frame(b"a message"))
            assert reader.read(may_wait=True) == []


async def test_a_connection_is_not_read_early_before_its_reader_has_handed_over_all() -> None:
    """What came later would overtake the rest."""
    reader = EarlyReader()
    ours, theirs = a_pair()
    async with ours:
        with theirs, reader.watched(ours, "n2", FrameSplitter(100), trio.CancelScope()) as way:
            theirs.send(frame(b"a message"))
            with reader.paused(way):
                assert reader.read(may_wait=True) == []
            assert len(reader.read(may_wait=False)) == 1


async def test_a_connection_that_was_given_up_is_not_read_again_after_a_pause() -> None:
    reader = EarlyReader()
    ours, theirs = a_pair()
    async with ours:
        with theirs, reader.watched(ours, "n2", FrameSplitter(100), trio.CancelScope()) as way:
            assert way is not None
            reader.forget(way)
            with reader.paused(way):
                pass
            theirs.send(frame(b"a message"))
            assert reader.read(may_wait=True) == []

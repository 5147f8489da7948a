"""A client's watches over whole members in memory move to other members without a gap or a repeat."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvstore.client.watches.watch_stream import StreamState, WatchStream
from kvstore.errors import Busy, InvalidRequest, OperationFailed, RevisionCompacted, Unsupported
from kvstore.limits import ServiceLimits
from kvstore.protocol.commands import ChangeLimits, Compact, Delete, Put, RaiseFeatureLevel, Txn
from kvstore.protocol.results import Record
from kvstore.protocol.watches import NO_FLAGS, Change, Events, WatchFlag, WatchSpec
from raft import LevelRange, ProtocolError
from tests.kvstore.support.in_memory_cluster import Cluster, SimClient


class SimWatch:
    """A watch of a `SimClient`, with all changes that it has returned."""

    def __init__(self, cluster: Cluster, client: SimClient, spec: WatchSpec) -> None:
        self._cluster, self.core = cluster, client.core
        self.stream = WatchStream(spec)
        self.changes: list[Change] = []
        self.revision = 0
        client.core.open_watch(self.stream)
        cluster.settle()

    def read(self) -> list[Change]:
        """Take every change that is ready, and return all changes so far. Raises the error of the watch."""
        self._cluster.settle()
        while (batch := self.stream.take()) is not None:
            self.changes += batch.changes
            self.revision = batch.revision
            self._cluster.settle()
        return self.changes

    @property
    def revisions(self) -> list[int]:
        return [change.revision for change in self.read()]


def raised(folder: Path, size: int, limits: ServiceLimits | None = None) -> tuple[Cluster, SimClient]:
    """A cluster at feature level 2 and a client."""
    cluster = Cluster(folder, size, limits)
    client = cluster.client()
    cluster.leader()
    client.do(RaiseFeatureLevel(2))
    cluster.settle()
    return cluster, client


def watch(
    cluster: Cluster,
    client: SimClient,
    start: bytes = b"",
    end: bytes | None = None,
    from_revision: int = 0,
    flags: WatchFlag = NO_FLAGS,
    window_bytes: int = 1 << 20,
) -> SimWatch:
    return SimWatch(cluster, client, WatchSpec(start, end, from_revision, flags, window_bytes))


def test_a_watch_gets_the_changes_of_its_range(tmp_path: Path) -> None:
    cluster, client = raised(tmp_path, 3)
    watched = watch(cluster, client, b"a", b"b")

    client.do(Put(b"a", b"1"))
    client.do(Put(b"b", b"1"))
    client.do(Txn(success=(Put(b"a/1", b"2"), Delete(b"a"))))

    assert [(change.kind, change.key, change.revision) for change in watched.read()] == [
        ("put", b"a", 2), ("put", b"a/1", 4), ("delete", b"a", 4),
    ]  # fmt: skip


@pytest.mark.parametrize("seconds", [0.0, 2.0])
def test_a_watch_survives_the_death_of_every_member_in_turn(tmp_path: Path, seconds: float) -> None:
    """No matter which member serves the watch, the next member continues after the last received revision."""
    cluster, client = raised(tmp_path, 3)
    everything, key = watch(cluster, client), watch(cluster, client, b"k1", b"k1\0")

    for number in range(9):
        client.do(Put(b"k%d" % (number % 3), b"%d" % number), 10)
        if number % 2 == 0:
            everything.read()
        dead = f"s{number % 3 + 1}"
        cluster.kill(dead)
        client.do(Put(b"during", b"%d" % number), 10)
        cluster.start(dead)
        cluster.wait(seconds)
    cluster.wait(2)

    assert everything.revisions == list(range(2, 20))
    assert [change.key for change in key.read()] == [b"k1"] * 3


def test_a_watch_leaves_a_member_that_hears_no_leader(tmp_path: Path) -> None:
    """The connection is open and the member answers, but the member is cut off from the other members and learns of no
    change."""
    cluster, client = raised(tmp_path, 3)
    leader = cluster.leader()
    watched = watch(cluster, client)
    client.do(Put(b"a", b"1"))
    assert len(watched.read()) == 1

    cluster.cut.add(leader)
    cluster.wait(3)
    other = cluster.client()
    other.do(Put(b"a", b"2"), 10)
    cluster.wait(15)

    assert watched.revisions == [2, 3]


def test_a_watch_on_a_silent_connection_is_moved(tmp_path: Path) -> None:
    """The member's host has disappeared without closing the connection. The client sends no other request to this
    member."""
    cluster, client = raised(tmp_path, 3)
    watched = watch(cluster, client)
    leader = cluster.leader()
    host = cluster.hosts.pop(leader)
    silent = [each for each, member in client.connections.items() if member == leader]
    for each in silent:
        del client.connections[each]

    cluster.wait(3)
    cluster.client().do(Put(b"a", b"1"), 10)
    cluster.wait(10)

    assert watched.revisions == [2]
    host.kill()


def test_a_watch_from_a_revision_begins_there_and_a_future_one_waits(tmp_path: Path) -> None:
    cluster, client = raised(tmp_path, 1)
    for number in range(5):
        client.do(Put(b"a", b"%d" % number))

    past, future = watch(cluster, client, from_revision=4), watch(cluster, client, from_revision=8)
    client.do(Put(b"a", b"x"))
    assert (past.revisions, future.revisions) == ([4, 5, 6, 7], [])
    client.do(Put(b"a", b"y"))
    assert (past.revisions[-1], future.revisions) == (8, [8])


def test_a_part_of_a_revision_is_forgotten_when_the_member_is_lost() -> None:
    """The next member sends the whole revision again."""
    stream = WatchStream(WatchSpec(b"", None, 5))
    parts = [Change("put", key, Record(b"v", 5, 5, 1), None, 5) for key in (b"a", b"b")]
    stream.state = StreamState.OPEN
    assert not stream.receive(Events((parts[0],), 70, is_whole=False), 5)
    assert stream.take() is None

    stream.leave()
    assert stream.request_spec().from_revision == 5
    stream.state = StreamState.OPEN
    stream.receive(Events((parts[0],), 70, is_whole=False), 5)
    stream.receive(Events((parts[1],), 70, is_whole=True), 5)

    batch = stream.take()
    assert batch is not None
    assert (batch.changes, batch.cost) == (tuple(parts), 140)


@pytest.mark.parametrize("revision", [3, 4])
def test_a_member_that_goes_back_is_not_believed(revision: int) -> None:
    stream = WatchStream(WatchSpec(b"", None, 5))
    stream.state = StreamState.OPEN
    old = Change("put", b"a", Record(b"v", revision, revision, 1), None, revision)

    with pytest.raises(ProtocolError, match="watch from revision 5"):
        stream.receive(Events((old,), 70, is_whole=True), revision)
    with pytest.raises(ProtocolError, match="watch from revision 5"):
        stream.receive_progress(revision - 1)


def test_what_was_lost_to_compaction_is_an_error_after_all_that_was_received(tmp_path: Path) -> None:
    cluster, client = raised(tmp_path, 1)
    watched = watch(cluster, client, window_bytes=1)
    for number in range(5):
        client.do(Put(b"a", b"%d" % number))
    client.do(Compact(5))
    cluster.settle()

    with pytest.raises(RevisionCompacted) as caught:
        watched.read()
    assert [change.revision for change in watched.changes] == [2]
    assert (caught.value.revision, caught.value.compact_revision) == (3, 5)
    with pytest.raises(RevisionCompacted):
        watched.read()


def test_a_refused_watch_ends_with_the_reason(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 1)
    client = cluster.client()
    client.do(Put(b"b", b"1"))  # Until a leader has applied an entry of its term, it cannot know the level in force.

    with pytest.raises(Unsupported, match="feature level"):
        watch(cluster, client).read()
    client.do(RaiseFeatureLevel(2))
    with pytest.raises(InvalidRequest):
        watch(cluster, client, b"b", b"a").read()
    client.do(Put(b"a", b"1"))
    client.do(Put(b"a", b"1"))
    client.do(Compact(3))
    with pytest.raises(RevisionCompacted):
        watch(cluster, client, from_revision=2).read()
    client.do(ChangeLimits(history_events_max=0))
    with pytest.raises(Unsupported, match="no history is kept"):
        watch(cluster, client).read()


def test_a_watch_that_has_begun_leaves_a_member_whose_build_knows_no_watches(tmp_path: Path) -> None:
    """The watch has begun, so the cluster is at the level of watches, and another member can take over the watch."""
    cluster = Cluster(tmp_path, 3)
    client, leader = cluster.client(), cluster.leader()
    behind, other = sorted({"s1", "s2", "s3"} - {leader})
    cluster.cut.add(behind)  # This member does not learn that the level was raised.
    client.do(RaiseFeatureLevel(2))
    watched = watch(cluster, client)
    client.do(Put(b"a", b"1"))
    assert watched.revisions == [2]

    for node_id in (behind, leader, other):
        cluster.kill(node_id)
    cluster.start(behind, LevelRange(1, 1))
    cluster.wait(3)
    assert isinstance(watched.stream.last_refusal, Unsupported)
    assert watched.stream.state is not StreamState.ENDED
    cluster.kill(behind)
    cluster.start(leader)
    cluster.start(other)
    client.do(Put(b"a", b"2"), 10)
    cluster.wait(3)

    assert watched.revisions == [2, 3]


def test_switching_the_history_off_ends_a_watch_with_the_reason(tmp_path: Path) -> None:
    cluster, client = raised(tmp_path, 1)
    watched = watch(cluster, client)

    client.do(ChangeLimits(history_events_max=0))

    with pytest.raises(Unsupported, match="no history is kept"):
        watched.read()


def test_a_watch_beyond_a_bound_waits_for_a_place(tmp_path: Path) -> None:
    cluster, client = raised(tmp_path, 1, ServiceLimits(watches_max=1))
    first, second = watch(cluster, client), watch(cluster, client)
    cluster.wait(1)
    assert isinstance(second.stream.last_refusal, Busy)

    client.core.close_watch(first.stream)
    cluster.wait(1)
    client.do(Put(b"a", b"1"))

    assert second.revisions == [2]


def test_a_reader_that_takes_nothing_holds_up_nobody_and_loses_nothing(tmp_path: Path) -> None:
    """The client holds at most a window of changes; the member keeps the rest in its history."""
    cluster, client = raised(tmp_path, 1, ServiceLimits(unsent_bytes_max=1 << 16))
    slow, quick = watch(cluster, client, window_bytes=2_000), watch(cluster, client)

    for number in range(500):
        client.do(Put(b"a", b"%d" % number))
        quick.read()
    assert slow.stream._held_bytes < 2_200
    assert len(quick.changes) == 500
    assert slow.read() == quick.changes


def test_a_watch_that_is_closed_leaves_nothing_behind(tmp_path: Path) -> None:
    cluster, client = raised(tmp_path, 1)
    watched = watch(cluster, client)
    client.do(Put(b"a", b"1"))

    client.core.close_watch(watched.stream)
    client.do(Put(b"a", b"2"))

    (host,) = cluster.hosts.values()
    assert host.service.watches.count == 0
    (connection,) = client.core._connections.values()
    assert connection.watches == {}
    assert watched.stream.state is StreamState.ENDED


def test_closing_the_client_ends_its_watches(tmp_path: Path) -> None:
    cluster, client = raised(tmp_path, 1)
    watched = watch(cluster, client)

    client.core.close()

    with pytest.raises(OperationFailed, match="closed"):
        watched.read()
    with pytest.raises(OperationFailed, match="closed"):
        client.core.open_watch(WatchStream(WatchSpec(b"", None)))


def test_a_quiet_watch_learns_the_progress_and_so_survives_a_compaction_on_its_way_to_another_member(
    tmp_path: Path,
) -> None:
    cluster, client = raised(tmp_path, 3)
    quiet = watch(cluster, client, b"quiet", b"quiet\0", flags=WatchFlag.PROGRESS)
    for number in range(20):
        client.do(Put(b"a", b"%d" % number))
    for _ in range(20):
        for host in cluster.hosts.values():
            host.service.expire_sessions()
        cluster.settle()
    quiet.read()
    assert quiet.revision == 21

    client.do(Compact(21))
    cluster.kill(cluster.leader())
    client.do(Put(b"quiet", b"1"), 10)
    cluster.wait(1)

    assert quiet.revisions == [22]

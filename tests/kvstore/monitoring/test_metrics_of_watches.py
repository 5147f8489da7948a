"""The metrics of watches, leases and the history, and the text of `hwm status` about them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric

from kvstore.cli.cluster.status import SERVICES_COLUMNS, _services_row
from kvstore.errors import Unavailable
from kvstore.limits import FEATURE_LEVEL_MAX, SECOND_NS
from kvstore.monitoring.metrics import PREFIX, MemberCollector
from kvstore.monitoring.metrics_counts import WATCH_ENDS, CountingMachine, CountingService, Counts
from kvstore.protocol.commands import (
    ChangeLimits,
    Command,
    Compact,
    Delete,
    LeaseGrant,
    LeaseRenew,
    LeaseRevoke,
    Put,
    RaiseFeatureLevel,
    Txn,
    encode_command,
)
from kvstore.protocol.messages import encode_request
from kvstore.protocol.status import status_from_map, status_to_map
from kvstore.protocol.watches import NO_FLAGS, WatchSpec, unwatch_body, watch_request
from raft import Entry, EntryKind, RaftConfig, encode_batch, frame
from raft.runtime import CompletionQueue, MeasuredDriver
from tests.kvstore.server.test_service import RawClient
from tests.kvstore.support.in_memory_cluster import Cluster

pytestmark = pytest.mark.timeout(30)


class Nobody:
    """An application that ignores everything the driver reports to it."""

    def complete(self, completions: object, events: object) -> None:
        """From the driver."""


class Watched:
    """A store of one member at the newest level. Its service counts events."""

    def __init__(self, folder: Path) -> None:
        self.cluster = Cluster(folder, 1)
        self.cluster.leader()
        client = self.cluster.client(ttl_ns=0)
        client.do(RaiseFeatureLevel(FEATURE_LEVEL_MAX))
        client.core.close()
        self.cluster.settle()
        self.cluster.clients.clear()
        self.host = self.cluster.hosts["s1"]
        self.service = CountingService(self.host.node, self.host.machine)
        self.service.counts = Counts()
        self.host.service = self.service
        self._request_id = 100

    def connect(self, connection_id: int) -> RawClient:
        return RawClient(self.cluster, connection_id)

    def do(self, client: RawClient, command: Command) -> None:
        self._request_id += 1
        raw = encode_command(command)
        client.send(frame(b"\x83\x18" + bytes([self._request_id]) + b"\x02" + raw))

    def metrics(self) -> dict[str, Metric]:
        driver = MeasuredDriver(self.host.node, completions=CompletionQueue(), application=Nobody())
        collector = MemberCollector(
            node=self.host.node,
            machine=self.host.machine,
            config=RaftConfig(),
            service=self.service,
            driver=driver,
        )
        return {metric.name: metric for metric in collector.collect()}

    def value(self, name: str, **labels: str) -> float:
        (sample,) = [each for each in self.metrics()[PREFIX + name].samples if each.labels == labels]
        return sample.value

    def ends(self) -> dict[str, float]:
        """The number of watches that have ended, by cause."""
        return {cause: count for cause in WATCH_ENDS if (count := self.value("watches_ended", cause=cause))}


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    watched = Watched(tmp_path)
    yield watched
    watched.host.kill()


def watch_body(watch_id: int, *, from_revision: int = 0, window: int = 1 << 20) -> bytes:
    return encode_request(watch_id, watch_request(WatchSpec(b"", None, from_revision, NO_FLAGS, window)))


def test_each_event_is_counted_for_each_watch_that_it_was_sent_to(watched: Watched) -> None:
    client = watched.connect(1)
    client.send(frame(watch_body(7)))
    client.send(frame(watch_body(300)))
    assert watched.value("watches") == 2
    watched.do(client, Put(b"a", b"1"))
    watched.do(client, Txn(success=(Put(b"a", b"2"), Put(b"b", b"1"), Delete(b"c"))))

    assert watched.value("watch_events_sent") == 2 * 3
    assert watched.value("watches_limit") == watched.service.limits.watches_max
    assert watched.ends() == {}


def test_the_end_of_a_watch_has_a_cause(watched: Watched) -> None:
    client, other = watched.connect(1), watched.connect(2)
    for watch_id in (7, 8):
        client.send(frame(watch_body(watch_id)))
    for watch_id in (7, 8, 9):
        other.send(frame(watch_body(watch_id)))
    client.send(frame(unwatch_body(7)))
    assert watched.ends() == {"unwatched": 1}

    watched.service.disconnected(2)
    assert watched.ends() == {"unwatched": 1, "disconnected": 3}
    assert watched.value("watches") == 1


def test_a_watch_that_is_so_slow_that_the_history_leaves_it_behind_is_counted(watched: Watched) -> None:
    client = watched.connect(1)
    client.send(frame(watch_body(7, window=1)))
    for number in range(5):
        watched.do(client, Put(b"a", b"%d" % number))  # The first event fills the whole window.
    watched.do(client, Compact(5))

    assert watched.ends() == {"compacted": 1}
    assert watched.value("history_first_revision") == 5
    assert watched.value("history_events") == 2


def test_switching_the_history_off_ends_watches_with_that_cause(watched: Watched) -> None:
    client = watched.connect(1)
    client.send(frame(watch_body(7)))
    watched.do(client, Put(b"a", b"1"))
    assert watched.value("history_events") == 1
    assert watched.value("history_bytes") == 64 + 1
    watched.do(client, ChangeLimits(history_events_max=0))

    assert watched.ends() == {"history_off": 1}
    assert watched.value("history_events") == watched.value("history_events_limit") == 0
    assert watched.value("history_first_revision") == watched.value("revision") + 1  # No change is kept.


def test_what_waits_for_clients_with_watches_is_shown(watched: Watched) -> None:
    watcher = watched.connect(1)
    watcher.send(frame(watch_body(7)))
    watcher.reads = False
    assert watched.value("watch_unsent_bytes") == 0
    watched.do(watcher, Put(b"a", bytes(1000)))
    assert watched.value("watch_unsent_bytes") > 1000


def test_leases_are_counted_at_apply() -> None:
    """Leases are counted when an entry is applied. So the counters of all members agree on the time during which all of
    them were running."""
    machine = CountingMachine()
    machine.counts = counts = Counts()
    index = 0

    def apply(*commands: Command, seconds: int = 0) -> None:
        nonlocal index
        index += 1
        payload = encode_batch(seconds * SECOND_NS, [encode_command(each) for each in commands])
        machine.apply(Entry(index, 1, EntryKind.COMMANDS, payload))

    apply(RaiseFeatureLevel(FEATURE_LEVEL_MAX))
    apply(*[LeaseGrant(number, 10 * SECOND_NS) for number in range(1, 7)], LeaseGrant(1, SECOND_NS))
    assert counts.leases == {"leases_granted": 6}  # This last lease exists already, so it is not granted.
    apply(LeaseRenew((1, 2, 3, 99)), LeaseRenew((1,)), seconds=5)
    apply(LeaseRevoke(1), LeaseRevoke(1), seconds=6)
    apply(Put(b"a", b"1"), seconds=11)  # The leases that no client has renewed end.

    assert counts.leases == {
        "leases_granted": 6, "lease_renewals": 4, "leases_revoked": 1, "leases_expired": 3,
    }  # fmt: skip
    assert len(machine.leases.by_id) == 2
    machine.check()


def test_the_status_of_a_member_has_watches_leases_and_the_history(watched: Watched) -> None:
    client = watched.connect(1)
    client.send(frame(watch_body(7)))
    watched.do(client, Put(b"a", b"1"))
    watched.do(client, Put(b"b", b"1"))
    watched.do(client, LeaseGrant(7, 60 * SECOND_NS))
    watched.do(client, Compact(3))

    told = status_from_map(status_to_map(watched.service.cluster.status()))
    assert (told.watches, told.leases, told.history_events, told.history_bytes) == (1, 1, 1, 65)
    assert told.first_revision == 3
    assert _services_row("s1", told) == ["s1", 1, 1, 3, 3, 1, 65]
    assert len(_services_row("s2", Unavailable("it is down"))) == len(SERVICES_COLUMNS)

"""The reasons of refusals in the metrics: every code of an answer has a word of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvstore.errors import (
    REFUSALS,
    AccessDenied,
    InvalidRequest,
    KvError,
    PermissionDenied,
    QuotaExceeded,
    Reason,
    ResultCode,
    StoreBusy,
    Unauthenticated,
)
from kvstore.limits import ServiceLimits
from kvstore.monitoring.metrics_counts import REASONS, CountingApplication, CountingService, Counts, reason_of
from kvstore.protocol.commands import ChangeLimits, Get, Put, RaiseFeatureLevel
from kvstore.protocol.error_codes import error_fields
from kvstore.protocol.messages import (
    Code,
    Consistency,
    command_request,
    encode_client_hello,
    encode_request,
    members_request,
    read_request,
)
from raft import (
    Acknowledge,
    Busy,
    ChangeRefusal,
    ChangeRefused,
    Compacted,
    LevelRefusal,
    LevelRefused,
    NodeStopped,
    NotCommitted,
    NotLeader,
    RaftError,
    Refused,
    TooLarge,
    TooStale,
    TransferRefused,
    Unknown,
    encode_item,
    frame,
)
from tests.kvstore.support.in_memory_cluster import Cluster

pytestmark = pytest.mark.timeout(30)

WORDS: dict[RaftError | KvError | AccessDenied, str] = {
    NotLeader("s1", None): "not_leader",
    Busy("pending_bytes_max", 1): "pending_bytes_max",
    NotCommitted(2, 1): "not_committed",
    Compacted(1, 2): "compacted",
    NodeStopped("s1", "it failed"): "stopped",
    TooLarge("a command", 2, 1): "too_large",
    TransferRefused("not_ready", "words"): "transfer_refused",
    ChangeRefused(ChangeRefusal.PENDING, "words"): "change_refused",
    LevelRefused(LevelRefusal.CHANGING, "words"): "level_refused",
    TooStale("s1", None, 1): "too_stale",
    InvalidRequest(Reason.KEY_EMPTY): "invalid_request",
    QuotaExceeded(2, 1): "quota_exceeded",
    StoreBusy("sessions_max", 1): "sessions_max",
    PermissionDenied("ada", "root"): "permission_denied",
    Unauthenticated("missing"): "unauthenticated",
}
WITHOUT_AN_ERROR = {
    Code.OK,
    Code.UNKNOWN,
    Code.UNSUPPORTED,
    Code.INTERNAL_ERROR,
    Code.NOT_ENOUGH_IN_SYNC,
    Code.UNDER_REPLICATED,
    Code.MALFORMED,
    Code.ACCEPTED,
}
"""The codes with which the service answers without an error of the store. A test below has a case for each of these
codes."""


def watched(cluster: Cluster, name: str, limits: ServiceLimits | None = None) -> CountingService:
    """Replace the service of a member by one that counts its answers. Connect one client that has said hello."""
    host = cluster.hosts[name]
    host.service = service = CountingService(host.node, host.machine, limits)
    service.counts = Counts()
    service.connected(1)
    service.receive(1, frame(encode_client_hello()))
    fetch(service)
    return service


def fetch(service: CountingService) -> None:
    for connection_id, data in service.take_output():
        service.sent(connection_id, len(data))


@pytest.mark.parametrize(("error", "word"), WORDS.items(), ids=WORDS.values())
def test_an_error_has_its_own_word(error: RaftError | KvError, word: str) -> None:
    assert reason_of(error) == word
    assert word in REASONS


def test_no_code_of_an_answer_is_told_as_other() -> None:
    """Each new code needs an example here."""
    told = {error_fields(error, lambda _: None)[0] for error in WORDS if not isinstance(error, KvError)}

    assert told | WITHOUT_AN_ERROR == set(Code)
    assert {code.name.lower() for code in REFUSALS if code is not ResultCode.BUSY} <= REASONS
    assert "other" not in WORDS.values()


def test_what_the_service_refuses_by_itself_is_counted(tmp_path: Path) -> None:
    """The test sends a request of an unknown kind, and a malformed request."""
    cluster = Cluster(tmp_path, 1)
    service = watched(cluster, "s1")

    service.receive(1, frame(encode_item([1, 99])))
    service.receive(1, frame(encode_request(2, read_request(Get(b"a"), Consistency.LEASE))))
    service.receive(1, frame(encode_item([0, 1])))

    assert service.counts.refusals == {"unsupported": 2, "protocol": 1}


def test_a_write_that_too_few_members_would_hold_is_counted(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 1)
    client = cluster.client()
    client.do(RaiseFeatureLevel(2))
    client.do(ChangeLimits(min_in_sync=2))
    service = watched(cluster, "s1")

    service.receive(1, frame(encode_request(1, command_request(Put(b"a", b"1"), Acknowledge.IN_SYNC))))

    assert service.counts.refusals == {"not_enough_in_sync": 1}


def test_an_unknown_outcome_is_counted_once() -> None:
    class Nobody:
        def complete(self, completions: object, events: object) -> None:
            """From the driver."""

    counts = Counts()
    CountingApplication(Nobody(), counts).complete([Unknown(1, "it stopped"), Refused(2, TooStale("s1", None, 1))], [])

    assert counts.refusals == {"outcome_unknown": 1, "too_stale": 1}


def test_a_bounded_read_that_grew_too_old_while_it_waited_for_room_is_counted(tmp_path: Path) -> None:
    """No error was raised when the read arrived, because the state was still young enough then."""
    cluster = Cluster(tmp_path, 3)
    cluster.client().do(Put(b"a", b"1"))
    cluster.wait(0.5)
    follower = min(set(cluster.hosts) - {cluster.leader()})
    cluster.clients.clear()  # No other client takes this service's output.
    service = watched(cluster, follower, ServiceLimits(unsent_bytes_max=1))

    def read(request_id: int) -> bytes:
        return frame(encode_request(request_id, read_request(Get(b"a"), Consistency.BOUNDED, max_staleness_ms=5_000)))

    service.receive(1, read(1))
    cluster.wait(0.1)
    fetch(service)
    cluster.cut = {follower}
    service.receive(1, read(2) + frame(encode_request(3, members_request())))
    cluster.wait(6)  # In the first of these seconds the read could still have been answered.
    assert not service.counts.refusals
    fetch(service)

    assert service.counts.refusals == {"too_stale": 1}

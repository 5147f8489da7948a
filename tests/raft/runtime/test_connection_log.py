"""The log of connections has text for people, and events with fields for machines."""

from __future__ import annotations

import ast
import contextlib
import logging
from pathlib import Path
from typing import Any

import pytest
import trio

from raft import Hello, HelloRole, Refusal, TraceEvent, frame
from raft.node.peer_identity import REMOVED, WRONG_INCARNATION
from raft.runtime import HELLO_REFUSALS
from raft.runtime.connection_log import ConnectionLog
from tests.raft.support.machines import CLUSTER_ID, Machine, a_cluster, a_listener, the_leader, until

pytestmark = pytest.mark.timeout(30)

RAFT = Path(__file__).resolve().parents[3] / "raft"


def events(caplog: pytest.LogCaptureFixture, name: str, node_id: str) -> list[dict[str, Any]]:
    """The fields of each event with this name that one member has logged."""
    told = [record.args for record in caplog.records if isinstance(record.args, dict)]
    return [each["fields"] for each in told if (each["event"], each["node_id"]) == (name, node_id)]


async def test_a_connection_is_told_with_the_peer_when_it_is_made_and_when_it_is_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "raft.transport")
    with trio.fail_after(20):
        async with a_cluster(2) as (s1, s2):
            await until(lambda: s1.transport.connected == {"s2"})
            await the_leader([s1, s2])
            s2.driver.request_stop()
            await until(lambda: bool(events(caplog, "disconnected", "s1")))

    assert events(caplog, "connected", "s1")[0] == {"peer_id": "s2"}
    (lost,) = events(caplog, "disconnected", "s1")
    assert lost["peer_id"] == "s2"
    assert lost["reason"] in ("it closed the connection", "the connection broke")
    assert "s1: connected to s2" in [record.getMessage() for record in caplog.records]


async def test_a_refusal_is_told_with_its_code_on_both_sides(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "raft.transport")
    with trio.fail_after(20):
        async with a_cluster(2, cluster_ids={"s2": b"another cluster."}) as (s1, _):
            await until(lambda: bool(events(caplog, "refused", "s1") and events(caplog, "refused_by_peer", "s2")))

    refused, by_peer = events(caplog, "refused", "s1")[0], events(caplog, "refused_by_peer", "s2")[0]
    assert (refused["peer_id"], refused["code"]) == ("s2", "wrong_cluster")
    assert "it belongs to cluster" in refused["reason"]
    assert (by_peer["peer_id"], by_peer["code"]) == ("s1", "wrong_cluster")
    assert by_peer["reason"] == refused["reason"]
    assert s1.transport.hellos_refused["wrong_cluster"] >= 1


async def test_a_peer_that_is_refused_where_it_is_called_is_counted_too(caplog: pytest.LogCaptureFixture) -> None:
    """Both sides check the hello of the other side, no matter which side called."""
    caplog.set_level(logging.WARNING, "raft.transport")
    with trio.fail_after(20):
        (first, _), (second, second_address) = await a_listener(), await a_listener()
        s1 = Machine("s1", ["s1", "s2"], first, {"s2": second_address}, pins={"s2": b"its former life."})
        s2 = Machine("s2", ["s1", "s2"], second)  # It reaches nobody.
        async with trio.open_nursery() as nursery:
            await nursery.start(s1.driver.run)
            await nursery.start(s2.driver.run)
            await until(lambda: bool(events(caplog, "refused", "s1")))
            nursery.cancel_scope.cancel()

    assert set(s1.transport.hellos_refused) == {"wrong_incarnation"}
    assert events(caplog, "refused", "s1")[0]["code"] == "wrong_incarnation"


async def test_a_caller_that_refuses_the_hello_which_it_is_answered_is_told_with_its_code_and_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The caller sends the refusal after the hello of s1, as during an upgrade. Such a refusal does not violate the
    protocol."""
    caplog.set_level(logging.DEBUG, "raft.transport")
    hello = Hello(
        cluster_id=CLUSTER_ID, group_id=0, node_id="s2", incarnation_id=b"s2".ljust(16, b"."), role=HelloRole.PEER
    )
    refusal = Refusal("feature_level", "its build knows feature level 1, and this cluster is at 2")
    with trio.fail_after(20):
        listener, _ = await a_listener()
        s1 = Machine("s1", ["s1", "s2"], listener)  # It reaches nobody.
        async with trio.open_nursery() as nursery:
            await nursery.start(s1.driver.run)
            for _ in range(2):
                async with await trio.open_tcp_stream("127.0.0.1", s1.transport.port) as stream:
                    await stream.send_all(frame(hello.encode()))
                    assert await stream.receive_some()  # Its hello.
                    await stream.send_all(frame(refusal.encode()))
                    with contextlib.suppress(trio.BrokenResourceError):
                        assert await stream.receive_some() == b""
            nursery.cancel_scope.cancel()

    told = [record for record in caplog.records if "feature_level" in record.getMessage()]
    words = "s1: peer s2: it refuses this connection (feature_level): its build knows feature level 1, and this"
    assert [record.levelname for record in told] == ["WARNING", "DEBUG"]
    assert all(record.getMessage().startswith(words) for record in told)
    assert events(caplog, "refused_by_peer", "s1")[0] == {
        "peer_id": "s2", "code": "feature_level", "reason": refusal.text
    }  # fmt: skip
    assert "broke the protocol" not in caplog.text


async def test_a_full_disk_is_told_with_what_takes_the_room(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "raft.driver")
    with trio.fail_after(20):
        async with a_cluster(1) as machines:
            await the_leader(machines)
            machines[0].driver._log([TraceEvent("disk_full", {})])

    (fields,) = events(caplog, "disk_full", "s1")
    assert set(fields) == {"log_bytes", "log_held_by", "last_index"}
    assert fields["last_index"] >= 1


def test_what_is_misconfigured_is_a_warning_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "raft.transport")
    log = ConnectionLog("s1")

    for _ in range(3):
        log.warn_once("refused", "a connection is refused", peer_id="s9", code="not_a_member")

    assert [record.levelname for record in caplog.records] == ["WARNING", "DEBUG", "DEBUG"]


def test_every_code_with_which_a_hello_can_be_refused_is_counted_by_its_name() -> None:
    """A new code needs an entry in HELLO_REFUSALS and one in docs/reference/metrics.md."""
    named = {"REMOVED": REMOVED, "WRONG_INCARNATION": WRONG_INCARNATION}
    # For a first frame that is not a hello, and for connections on which TLS failed.
    codes = {"not_a_hello", "tls_failed", "tls_required"}
    for path in RAFT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "PeerRefused":
                code = node.args[1]
                codes.add(named[code.id] if isinstance(code, ast.Name) else ast.literal_eval(code))

    assert codes == HELLO_REFUSALS - {"other"}

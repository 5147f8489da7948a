"""Answers of a broken member, or of another program. Each call of a client must end with a result, or with one of the
two promised errors: `OperationFailed` or `OutcomeUnknown`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import cbor2

from kvstore import Get, OperationFailed, OutcomeUnknown, Put, Range
from kvstore.client.client import _read_any, _read_get, _read_log_page, _read_put, _read_status
from kvstore.client.core import ClientStateMachine
from kvstore.protocol.commands import CommandKind
from kvstore.protocol.membership import decode_membership
from kvstore.protocol.messages import Consistency, Response, command_request, decode_members, read_request
from kvstore.protocol.results import read_answer
from raft import Hello, HelloRole, frame
from tests.fuzz.campaign import RecordProperty, campaign, sizes
from tests.fuzz.structures import Structures

CALLS_PER_CONNECTION = 4
MILLISECOND_NS = 1_000_000
CLUSTER_ID = bytes(range(16))
MEMBERS = ["n1", "h1:1", 3, [["n1", "h1:1"], ["n2", "h2:1"], ["n3", "h3:1"]]]
RECORD = [b"value", 2, 3, 1, 0]


@sizes
def test_a_client_ends_every_call_whatever_members_answer(inputs: int, record_property: RecordProperty) -> None:
    """In most answers one item is replaced. The client may hang up or continue, but it must neither raise an error nor
    get stuck."""
    outcomes: Counter[str] = Counter()
    with campaign(record_property, surface="answers to the client's core", seed=30, inputs=inputs) as random:
        sent = 0
        while sent < inputs:
            sent += _one_life(random, outcomes)
    assert {"answered", "OutcomeUnknown", "Unavailable"} <= set(outcomes), outcomes


def _one_life(random: Random, outcomes: Counter[str]) -> int:
    """Run a client with some calls against members whose answers have small defects, until all calls have ended."""
    structures, now, answers = Structures(random), 1, 0
    session_ttl_ns = random.choice((0, 60_000 * MILLISECOND_NS))
    core = ClientStateMachine(["h1:1", "h2:1"], random=random, now=now, session_ttl_ns=session_ttl_ns)
    for ticket in range(1, CALLS_PER_CONNECTION + 1):
        command = random.choice((Put(b"key", b"value"), Get(b"key"), Range(b"a", b"b")))
        is_read = not isinstance(command, Put)
        request = read_request(command, Consistency.LINEARIZABLE) if is_read else command_request(command)  # type: ignore[arg-type]
        core.submit(ticket, request, now + 2_000 * MILLISECOND_NS)
    ended = 0
    unread: dict[int, bytes] = {}
    for _ in range(400):
        effects = core.take_effects()
        for connection_id, _ in effects.dial:
            core.connected(connection_id)
        for connection_id in effects.close:
            core.disconnected(connection_id, "closed")
        for each in effects.ended:
            outcomes["answered" if each.error is None else type(each.error).__name__] += 1
            ended += 1
        for connection_id, data in effects.send:
            data = unread.pop(connection_id, b"") + data
            for body in _bodies(data):
                answer = frame(cbor2.dumps(_answer(body, structures, random)))
                answers += 1
                core.receive(connection_id, structures.changed_bytes(answer) if random.random() < 0.02 else answer)
        if ended == CALLS_PER_CONNECTION:
            break
        now += 50 * MILLISECOND_NS
        core.tick(now)
    assert ended == CALLS_PER_CONNECTION, "a call has not ended by its deadline"
    core.close()
    core.take_effects()
    return max(1, answers)


def _bodies(data: bytes) -> list[Any]:
    bodies = []
    while data:
        size = int.from_bytes(data[:4], "big")
        bodies.append(cbor2.loads(data[4 : 4 + size]))
        data = data[4 + size :]
    return bodies


def _answer(body: Any, structures: Structures, random: Random) -> object:
    if body[0] == "HWM":
        hello = Hello(cluster_id=CLUSTER_ID, group_id=0, node_id="n1", incarnation_id=CLUSTER_ID, role=HelloRole.PEER)
        answer: Any = cbor2.loads(hello.encode())
        return structures.changed(answer) if random.random() < 0.05 else answer
    request_id, kind = body[0], body[1]
    answer = [request_id, 0, 7, 0, "n1", *_fields(kind, body)]
    if random.random() < 0.2:
        codes = (1, 2, 3, 4, 5, 6, 7, 8, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 99, -1)
        answer = [request_id, random.choice(codes), 7, 0, "n1", *random.choice(([], ["n2", "h2:1"], ["why"], [1, 2]))]
    if random.random() < 0.3:
        return structures.changed([*answer[:1], *_tail(structures, answer[1:])])
    return [*answer[:1], *_tail(structures, answer[1:])] if random.random() < 0.3 else answer


def _tail(structures: Structures, items: list[Any]) -> list[Any]:
    changed = structures.changed(items)
    return changed if isinstance(changed, list) else [changed]


def _fields(kind: int, body: Any) -> list[Any]:
    if kind == 1:
        return MEMBERS
    if kind == 2:
        return [[16, 5, 60_000 * MILLISECOND_NS]] if body[2][3] == 16 else [[body[2][3]]]
    if kind == 3 and body[3][0] == 2:
        return [[2, RECORD]]
    return [[4, [[b"key", *RECORD]], False, 1]]


STATUS = {
    "node_id": "n1", "cluster_id": CLUSTER_ID, "role": "leader", "term": 1, "leader_id": "n1", "first_index": 1,
    "snapshot_index": 0, "last_applied": 1, "commit_index": 1, "durable_index": 1, "last_index": 1, "low_watermark": 0,
    "revision": 1, "compact_revision": 0, "keys": 0, "stored_bytes": 0, "quota_bytes": 1, "sessions": 0, "log_bytes": 1,
    "open_proposals": 0, "open_reads": 0, "uncommitted_bytes": 0, "failure": None, "state_hash": b"", "peers": [],
}  # fmt: skip
MEMBERSHIP = {
    "node_id": "n1", "cluster_id": CLUSTER_ID, "leader_id": "n1", "term": 1, "is_changing": False, "removed": ["n0"],
    "members": [{"node_id": "n1", "part": "voter", "peer_address": "h:1", "client_address": "h:2",
                 "incarnation_id": CLUSTER_ID, "lag": None, "is_heard": None}],
}  # fmt: skip
ANSWERS: list[tuple[Callable[[Response], object], list[Any]]] = [
    (_read_put, [[1]]),
    (_read_get, [[2, RECORD]]),
    (_read_get, [[2, None, 3, True]]),
    (lambda response: _read_any(response, CommandKind.RANGE, 0), [[4, [[b"key", *RECORD]], False, 1]]),
    (lambda response: _read_any(response, CommandKind.DELETE, 0), [[3, False, 4, True]]),
    (lambda response: _read_any(response, CommandKind.COMPARE_AND_SET, 0), [[5, False, RECORD]]),
    (lambda response: _read_any(response, CommandKind.TXN, 0), [[6, True, [[1], [2, RECORD]]]]),
    (_read_status, [STATUS]),
    (_read_log_page, [[[1, 1, 1, b"payload"]], 1]),
    (decode_membership, [MEMBERSHIP]),
    (decode_members, MEMBERS),
]


@sizes
def test_what_a_call_returns_has_the_types_that_it_promises(inputs: int, record_property: RecordProperty) -> None:
    """Even an answer with unexpected fields gives an outcome, and every returned value can be printed and compared."""
    outcomes: Counter[str] = Counter()
    with campaign(record_property, surface="fields of answers", seed=31, inputs=inputs) as random:
        structures = Structures(random)
        for _ in range(inputs):
            read, fields = random.choice(ANSWERS)
            changed = _tail(structures, fields)
            has_effect = random.random() < 0.5
            response = Response(1, 0, 7, random.choice((0, 0, 1, 5, 9)), "n1", tuple(changed))
            try:
                value = read_answer(response, read, has_effect=has_effect)
            except (OperationFailed, OutcomeUnknown) as error:
                outcomes[f"{type(error).__name__} of a {'write' if has_effect else 'read'}"] += 1
            else:
                outcomes["read"] += 1
                repr(value)
                hash(value)
    assert set(outcomes) == {"read", "OutcomeUnknown of a write", "Unavailable of a read"}, outcomes

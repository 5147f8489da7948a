"""Commands on the wire, their shapes, and what admission refuses (docs/reference/specification.md#82-commands)."""

from __future__ import annotations

import copy
import pickle
import random
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.errors import REFUSALS, InvalidRequest, KvError, Reason, ResultCode, refusal_of
from kvstore.limits import MIB, SECOND_NS, AdmissionLimits, StoreLimits
from kvstore.protocol.commands import (
    Add,
    Append,
    ChangeLimits,
    CloseSession,
    Command,
    Compact,
    Compare,
    CompareAndSet,
    Comparison,
    Delete,
    DeleteRange,
    Get,
    KeepAlive,
    LeaseGrant,
    LeaseRenew,
    LeaseRevoke,
    Operation,
    Put,
    RaiseFeatureLevel,
    Range,
    RegisterSession,
    Target,
    Txn,
    UnreadablePayload,
    command_body,
    command_of,
    decode_payload,
    encode_command,
    prefix_range,
)
from kvstore.protocol.validation import admit_body, admit_command, validate_body
from raft import DEPTH_MAX, decode_item, encode_batch
from tests.kvstore.support.naive_store import writes_twice

LIMITS = AdmissionLimits()

EVERY_COMMAND: list[tuple[Command, list[Any]]] = [
    (Put(b"k", b"v"), [1, b"k", b"v"]),
    (Get(b"k"), [2, b"k"]),
    (Delete(b"k"), [3, b"k"]),
    (Range(b"a", b"b", 7, True, False, True, 9, 10), [4, b"a", b"b", 7, True, False, True, 9, 10]),
    (Range(), [4, b"", None, 0, False, False, False, 0, 0]),
    (CompareAndSet(b"k", b"v", b"old"), [5, b"k", b"v", b"old"]),
    (CompareAndSet(b"k", b"v", 0), [5, b"k", b"v", 0]),
    (
        Txn((Compare(b"k", Target.VERSION, Comparison.LESS, 3),), (Put(b"a", b""), Get(b"b")), (Delete(b"a"),)),
        [6, [[1, 3, b"k", 3]], [[1, b"a", b""], [2, b"b"]], [[3, b"a"]]],
    ),
    (RegisterSession(5 * SECOND_NS), [16, 5 * SECOND_NS]),
    (CloseSession(), [17]),
    (KeepAlive(), [18]),
    (ChangeLimits(sessions_max=5), [19, None, 5, None, None, None, None]),
    (RaiseFeatureLevel(1), [20, 1]),
    # Feature level 2.
    (Put(b"k", b"v", lease_id=9), [1, b"k", b"v", 9, 0]),
    (Put(b"k", b"v", previous=True), [1, b"k", b"v", 0, 1]),
    (Put(b"k", b"", lease_id=9, previous=True, keep_value=True), [1, b"k", b"", 9, 3]),
    (Put(b"k", b"v", keep_lease=True), [1, b"k", b"v", 0, 4]),
    (Get(b"k", 7), [2, b"k", 7]),
    (DeleteRange(b"a", b"b"), [7, b"a", b"b", False]),
    (DeleteRange(b"", None, previous=True), [7, b"", None, True]),
    (Append(b"queue/", b"v"), [9, b"queue/", b"v", 0]),
    (Append(b"", b"v", 9), [9, b"", b"v", 9]),
    (Add(b"k", -3), [10, b"k", -3]),
    (
        Txn(
            (
                Compare(b"a", Target.LEASE, Comparison.EQUAL, 9),
                Compare(b"a", Target.VERSION, Comparison.GREATER, 0, b"b"),
                Compare(b"a", Target.VALUE, Comparison.EQUAL, b"x", None),
            ),
            (Txn((), (Add(b"a", 1),), (Append(b"b", b""),)), DeleteRange(b"c", b"d")),
        ),
        [
            6,
            [[5, 1, b"a", 9], [1, 4, b"a", 0, b"b"], [4, 1, b"a", b"x", None]],
            [[6, [], [[10, b"a", 1]], [[9, b"b", b"", 0]]], [7, b"c", b"d", False]],
            [],
        ],
    ),
    (LeaseGrant(0, 5 * SECOND_NS), [21, 0, 5 * SECOND_NS]),
    (LeaseRevoke(9), [22, 9]),
    (LeaseRenew((9, 10)), [23, 9, 10]),
    (Compact(5), [24, 5]),
    (
        ChangeLimits(history_events_max=0, lease_grace_ns=1),
        [19, None, None, None, None, None, None, None, 0, None, 1, None, None],
    ),
]
LEVEL_1_COMMANDS = [(command, body) for command, body in EVERY_COMMAND if validate_body(body, 1) is None]


@pytest.mark.parametrize(("command", "body"), EVERY_COMMAND, ids=lambda each: type(each).__name__)
def test_a_command_has_the_wire_form_of_the_docs_and_comes_back_equal(command: Command, body: list[Any]) -> None:
    """Logs on disks contain these arrays, so this table only grows at its end.

    See docs/reference/specification.md#82-commands.
    """
    session_id = 0 if isinstance(command, RegisterSession) else 7
    raw = encode_command(command, session_id=session_id, request_no=4, acknowledged_up_to=3)

    item = decode_item(raw)  # Every frame is decoded with this CBOR profile.

    assert item == [session_id, 4, 3, *body]
    admit_command(item, LIMITS)
    assert command_of(item[3:]) == command
    assert command_body(command) == tuple(cbor2.loads(cbor2.dumps(body), immutable=True))


def test_the_first_commands_of_the_table_are_those_of_level_1() -> None:
    """A command is encoded in the form of the lowest feature level that has the command. So a newer client sends the
    same bytes as an older one."""
    assert EVERY_COMMAND[: len(LEVEL_1_COMMANDS)] == LEVEL_1_COMMANDS
    assert LEVEL_1_COMMANDS[-1][0] == RaiseFeatureLevel(1)


@pytest.mark.parametrize(
    "body", [body for command, body in EVERY_COMMAND[len(LEVEL_1_COMMANDS) :]], ids=lambda body: str(body)[:30]
)
def test_at_level_1_every_form_of_level_2_is_refused_like_any_unknown_one(body: list[Any]) -> None:
    """The feature level in force decides, not the build (docs/reference/specification.md#713-feature-levels)."""
    is_longer = body[0] in (1, 2, 19) or (body[0] == 6 and len(body[1][0]) > 4)
    is_new_target = body[0] == 6

    flaw = validate_body(body, 1)

    assert flaw is (Reason.OUT_OF_RANGE if is_new_target else Reason.MALFORMED if is_longer else Reason.UNKNOWN_KIND)
    with pytest.raises(InvalidRequest):
        admit_command([0, 0, 0, *body], LIMITS, 1)
    admit_command([0, 0, 0, *body], LIMITS, 2)


def test_the_limits_are_sent_in_the_order_of_their_fields() -> None:
    """The array of limits grows only at its end (see kvstore.limits)."""
    assert StoreLimits.names() == tuple(ChangeLimits.__dataclass_fields__)


def test_a_payload_is_split_into_its_time_and_its_commands() -> None:
    """leader_time is the first item (docs/reference/specification.md#22-batches)."""
    raw = [encode_command(Put(b"a", b"1")), encode_command(Get(b"a"))]

    leader_time, items = decode_payload(encode_batch(17, raw))

    assert leader_time == 17
    assert items == (17, (0, 0, 0, 1, b"a", b"1"), (0, 0, 0, 2, b"a"))


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xff", b"\x80", b"\x05", cbor2.dumps({1: 2}), cbor2.dumps(["now"]), cbor2.dumps([-1]), cbor2.dumps([True]),
     cbor2.dumps([2**62 + 1]), b"\x9f\x01\xff", b"\x82\x01", b"\x82\x01\xd8\x23\x61a", b"\x82\x01\xc2\x41\x01"],
)  # fmt: skip
def test_a_payload_of_no_known_shape_stops_the_member(payload: bytes) -> None:
    """A member that meets an unknown shape stops. If it guessed the meaning, its state could diverge from the state of
    other members.

    See docs/reference/specification.md#713-feature-levels.
    """
    with pytest.raises(UnreadablePayload, match="log entry 9"):
        decode_payload(payload, 9)


@pytest.mark.parametrize(
    ("prefix", "end"),
    [(b"a", b"b"), (b"a\xff", b"b"), (b"a\xff\xff", b"b"), (b"\xff", None), (b"\xff\xff", None), (b"", None)],
)
def test_the_end_of_a_prefix_is_the_first_key_after_it(prefix: bytes, end: bytes | None) -> None:
    """The byte 0xff has no successor, so the byte before it is raised (docs/reference/specification.md#86-ranges)."""
    assert prefix_range(prefix) == (prefix, end)


@given(st.binary(max_size=3), st.binary(min_size=1, max_size=4))
def test_a_prefix_range_holds_exactly_the_keys_with_that_prefix(prefix: bytes, key: bytes) -> None:
    """The keys with this prefix are the definition of the range."""
    start, end = prefix_range(prefix)
    assert (start <= key and (end is None or key < end)) == key.startswith(prefix)


def put_many(count: int) -> list[Any]:
    return [[1, b"%d" % i, b""] for i in range(count)]


MALFORMED: list[tuple[Any, Reason]] = [
    (None, Reason.MALFORMED),
    ([0, 0, 0], Reason.MALFORMED),
    (["0", 0, 0, 2, b"k"], Reason.MALFORMED),
    ([True, 0, 0, 2, b"k"], Reason.MALFORMED),
    ([-1, 0, 0, 2, b"k"], Reason.OUT_OF_RANGE),
    ([2**63, 0, 0, 2, b"k"], Reason.OUT_OF_RANGE),
    ([0, 0, 0, 99], Reason.UNKNOWN_KIND),
    ([0, 0, 0, True, b"k", b"v"], Reason.UNKNOWN_KIND),
    ([0, 0, 0, [], b"k"], Reason.UNKNOWN_KIND),
    ([0, 0, 0, 1, b"k"], Reason.MALFORMED),
    ([0, 0, 0, 1, b"k", "text"], Reason.MALFORMED),
    ([0, 0, 0, 1, "text", b"v"], Reason.MALFORMED),
    ([0, 0, 0, 1, b"", b"v"], Reason.KEY_EMPTY),
    ([0, 0, 0, 1, b"k", b"v", 5], Reason.MALFORMED),  # Longer arrays belong to a higher level.
    ([0, 0, 0, 2, b""], Reason.KEY_EMPTY),
    ([0, 0, 0, 4, b"", None, 0, 0, False, False, 0, 0], Reason.MALFORMED),
    ([0, 0, 0, 4, b"", None, -1, False, False, False, 0, 0], Reason.OUT_OF_RANGE),
    ([0, 0, 0, 4, b"", "z", 0, False, False, False, 0, 0], Reason.MALFORMED),
    ([0, 0, 0, 5, b"k", b"v", None], Reason.MALFORMED),
    ([0, 0, 0, 5, b"k", b"v", -1], Reason.OUT_OF_RANGE),
    ([0, 0, 0, 6, [], [], []][:6], Reason.MALFORMED),
    ([0, 0, 0, 6, [[1, 1, b"k", b"v"]], [], []], Reason.MALFORMED),  # A number compared with bytes.
    ([0, 0, 0, 6, [[4, 1, b"k", 1]], [], []], Reason.MALFORMED),
    ([0, 0, 0, 6, [[6, 1, b"k", 1]], [], []], Reason.OUT_OF_RANGE),
    ([0, 0, 0, 6, [[1, 5, b"k", 1]], [], []], Reason.OUT_OF_RANGE),
    ([0, 0, 0, 6, [[1, 1, b"", 1]], [], []], Reason.KEY_EMPTY),
    ([0, 0, 0, 6, [], [[5, b"k", b"", 0]], []], Reason.UNKNOWN_KIND),  # A transaction cannot contain a compare_and_set.
    ([0, 0, 0, 6, [], [[]], []], Reason.MALFORMED),
    ([0, 0, 0, 6, [], [[1, b"k", b""], [3, b"k"]], []], Reason.KEY_WRITTEN_TWICE),
    ([0, 0, 0, 6, [], [], [[1, b"k", b""], [1, b"k", b""]]], Reason.KEY_WRITTEN_TWICE),
    ([0, 0, 0, 16, 0], Reason.OUT_OF_RANGE),
    ([1, 0, 0, 16, 5 * SECOND_NS], Reason.OUT_OF_RANGE),  # A session cannot be registered under a session.
    ([0, 0, 0, 17], Reason.SESSION_REQUIRED),
    ([0, 0, 0, 18], Reason.SESSION_REQUIRED),
    ([0, 0, 0, 18, 1], Reason.MALFORMED),
    ([0, 0, 0, 19, 1], Reason.MALFORMED),
    ([0, 0, 0, 19, 0, None, None, None, None, None], Reason.OUT_OF_RANGE),
    ([0, 0, 0, 20, 0], Reason.OUT_OF_RANGE),
]

MALFORMED_AT_ANY_LEVEL = MALFORMED.copy()
NOTHING: list[Any] = [6, [], [], []]


def nested(*inner: Any, depth: int) -> list[Any]:
    """Put these operations inside `depth` nested transactions."""
    return [6, [], list(inner) if depth == 1 else [nested(*inner, depth=depth - 1)], []]


MALFORMED_AT_LEVEL_2: list[tuple[Any, Reason]] = [
    ([1, b"k", b"v", 0], Reason.MALFORMED),
    ([1, b"k", b"v", True, 0], Reason.MALFORMED),
    ([1, b"k", b"v", 0, b""], Reason.MALFORMED),
    ([1, b"k", b"v", -1, 0], Reason.OUT_OF_RANGE),
    ([1, b"k", b"v", 0, 8], Reason.OUT_OF_RANGE),
    ([1, b"k", b"v", 0, -1], Reason.OUT_OF_RANGE),
    ([1, b"k", b"v", 0, 2], Reason.MALFORMED),  # Flag 2 means that the old value is kept, but a value is given.
    ([1, b"k", b"", 5, 4], Reason.MALFORMED),  # Flag 4 means that the old lease is kept, but a lease is given.
    ([1, b"", b"", 0, 1], Reason.KEY_EMPTY),
    ([2, b"k", b""], Reason.MALFORMED),
    ([2, b"k", -1], Reason.OUT_OF_RANGE),
    ([2, b"k", 0, 0], Reason.MALFORMED),
    ([7, b"a", b"b"], Reason.MALFORMED),
    ([7, b"a", "b", False], Reason.MALFORMED),
    ([7, b"a", b"b", 0], Reason.MALFORMED),
    ([9, b"a", b"b"], Reason.MALFORMED),
    ([9, "a", b"b", 0], Reason.MALFORMED),
    ([9, b"a", b"b", 2**63], Reason.OUT_OF_RANGE),
    ([9, b"a", b"b", None], Reason.MALFORMED),
    ([10, b"a"], Reason.MALFORMED),
    ([10, b"a", b"1"], Reason.MALFORMED),
    ([10, b"a", 2**63], Reason.OUT_OF_RANGE),
    ([10, b"", 1], Reason.KEY_EMPTY),
    ([6, [[1, 1, b"k", 1, "z"]], [], []], Reason.MALFORMED),
    ([6, [[1, 1, b"k", 1, b"z", 0]], [], []], Reason.MALFORMED),
    ([6, [[5, 1, b"k", b"1"]], [], []], Reason.MALFORMED),  # A lease compared with bytes.
    ([6, [[True, 1, b"k", 1]], [], []], Reason.MALFORMED),
    ([6, [], [[6, [], []]], []], Reason.MALFORMED),
    ([6, [], 1, []], Reason.MALFORMED),
    (nested(NOTHING, depth=4), Reason.NESTED_TOO_DEEP),
    ([6, [], [[16, 5 * SECOND_NS]], []], Reason.UNKNOWN_KIND),
    # One path through the branches may write a key only once.
    ([6, [], [[1, b"k", b""], [7, b"a", b"z", False]], []], Reason.KEY_WRITTEN_TWICE),
    ([6, [], [], [[7, b"", None, False], [10, b"k", 1]]], Reason.KEY_WRITTEN_TWICE),
    ([6, [], [[1, b"k", b""], nested([3, b"k"], depth=2)], []], Reason.KEY_WRITTEN_TWICE),
    ([6, [], [[6, [], [], [[10, b"k", 1]]], [1, b"k", b""]], []], Reason.KEY_WRITTEN_TWICE),
    ([6, [], [nested([7, b"a", None, False], depth=1), nested([1, b"k", b""], depth=1)], []], Reason.KEY_WRITTEN_TWICE),
    # The range contains a key of the other branch, which is allowed. It also contains a key of another operation.
    ([6, [], [[6, [], [[1, b"a", b""]], [[7, b"a", b"z", False]]], [1, b"k", b""]], []], Reason.KEY_WRITTEN_TWICE),
    ([19, *[None] * 11], Reason.MALFORMED),
    ([19, *[None] * 13], Reason.MALFORMED),
    ([19, *[None] * 8, 0, None, None, None], Reason.OUT_OF_RANGE),  # leases_max
    ([19, *[None] * 9, 3_600 * SECOND_NS + 1, None, None], Reason.OUT_OF_RANGE),  # lease_grace_ns
    ([19, *[None] * 10, 0, None], Reason.OUT_OF_RANGE),  # delete_keys_max
    ([19, *[None] * 10, 100_001, None], Reason.OUT_OF_RANGE),
    ([19, *[None] * 11, 0], Reason.OUT_OF_RANGE),  # min_in_sync
    ([19, *[None] * 11, 10], Reason.OUT_OF_RANGE),
    ([21, 0], Reason.MALFORMED),
    ([21, 0, 0], Reason.OUT_OF_RANGE),
    ([21, -1, 5 * SECOND_NS], Reason.OUT_OF_RANGE),
    ([21, b"", 5 * SECOND_NS], Reason.MALFORMED),
    ([22], Reason.MALFORMED),
    ([22, 1, 2], Reason.MALFORMED),
    ([22, -1], Reason.OUT_OF_RANGE),
    ([23], Reason.MALFORMED),
    ([23, 1, None], Reason.MALFORMED),
    ([23, 1, 2**63], Reason.OUT_OF_RANGE),
    ([24], Reason.MALFORMED),
    ([24, True], Reason.MALFORMED),
    ([24, -1], Reason.OUT_OF_RANGE),
]
MALFORMED += [([0, 0, 0, *body], reason) for body, reason in MALFORMED_AT_LEVEL_2]

WRITTEN_ONCE: list[list[Any]] = [
    [[6, [], [[1, b"k", b""]], [[10, b"k", 1]]]],  # These branches exclude each other.
    [[6, [], [[1, b"k", b""]], [[7, b"a", b"z", False]]]],
    [[3, b"k"], [3, b"k"], [7, b"a", b"z", False], [7, b"", None, True]],  # Deletions never conflict with each other.
    [[1, b"k", b""], [7, b"a", b"k", False], [7, b"k\0", None, False]],  # Ranges beside the key.
    [[7, b"z", b"a", False], [1, b"k", b""]],  # An empty range.
    [[9, b"k", b"", 0], [7, b"", None, False]],  # The key of an append is not known before it runs.
]


@pytest.mark.parametrize("branch", WRITTEN_ONCE, ids=str)
def test_writes_that_cannot_meet_are_admitted(branch: list[Any]) -> None:
    """docs/reference/specification.md#84-transactions: one path writes a key only once."""
    admit_command([0, 0, 0, 6, [], branch, []], LIMITS)
    admit_command([0, 0, 0, 6, [], [], [[6, [], branch, []]]], LIMITS)


def test_writes_that_may_meet_are_found_as_by_comparing_each_with_each() -> None:
    """The test compares the result for random transactions with that of a slow check of every pair of writes."""
    rng = random.Random(3)

    def operation(depth: int) -> Operation:
        key, end = bytes([rng.randrange(97, 107)]), bytes([rng.randrange(97, 107)])
        if depth and rng.random() < 0.4:
            return Txn((), branch(depth - 1), branch(depth - 1))
        kinds = (Put(key, b""), Add(key, 1), Delete(key), DeleteRange(key, end), DeleteRange(key, None), Get(key))
        return rng.choice(kinds)

    def branch(depth: int) -> tuple[Operation, ...]:
        return tuple(operation(depth) for _ in range(rng.randrange(4)))

    found = []
    for _ in range(5_000):
        txn = Txn((), branch(2), branch(1))
        found.append(validate_body(command_body(txn)) is Reason.KEY_WRITTEN_TWICE)
        assert found[-1] == writes_twice(txn), txn
    assert 500 < sum(found) < 4_500


def test_the_writes_of_a_large_transaction_are_compared_in_a_moment() -> None:
    """A frame has room for some 10⁵ operations, and all of them are compared before their number is checked. Their
    comparison must not take 10¹⁰ steps."""
    puts = [[1, b"%06d" % each, b""] for each in range(0, 60_000, 2)]
    ranges = [[7, b"%06d" % each, b"%06d" % (each + 1), False] for each in range(1, 60_000, 2)]

    assert validate_body([6, [], puts + ranges, []]) is None
    assert validate_body([6, [], [*puts, *ranges, [7, b"000100", b"0001000", False]], []]) is Reason.KEY_WRITTEN_TWICE


@pytest.mark.parametrize(("item", "reason"), MALFORMED, ids=repr)
def test_a_malformed_command_is_refused_at_admission(item: Any, reason: Reason) -> None:
    """A decoded command is validated before any entry is proposed.

    See docs/reference/specification.md#712-requests-from-outside.
    """
    with pytest.raises(InvalidRequest) as caught:
        admit_command(item, LIMITS)
    assert caught.value.reason is reason


BOUNDS: list[tuple[list[Any], Reason, int, int]] = [
    ([1, b"k" * 1025, b""], Reason.KEY_TOO_LONG, 1025, 1024),
    ([1, b"k", b"v" * (MIB + 1)], Reason.VALUE_TOO_LONG, MIB + 1, MIB),
    ([2, b"k" * 1025], Reason.KEY_TOO_LONG, 1025, 1024),
    ([4, b"k" * 1026, None, 0, False, False, False, 0, 0], Reason.KEY_TOO_LONG, 1026, 1025),
    ([4, b"", b"k" * 1026, 0, False, False, False, 0, 0], Reason.KEY_TOO_LONG, 1026, 1025),
    ([5, b"k", b"", b"v" * (MIB + 1)], Reason.VALUE_TOO_LONG, MIB + 1, MIB),
    ([6, [[4, 1, b"k", b"v" * (MIB + 1)]], [], []], Reason.VALUE_TOO_LONG, MIB + 1, MIB),
    ([6, [[1, 1, b"k", 0]], put_many(64), put_many(64)], Reason.TOO_MANY_OPERATIONS, 129, 128),
    ([6, [], [[1, b"a", b"v" * MIB], [1, b"b", b"v" * MIB]], []], Reason.TRANSACTION_TOO_LARGE, 2 * MIB + 2, 3 * MIB // 2),  # noqa: E501
    ([16, SECOND_NS - 1], Reason.OUT_OF_RANGE, SECOND_NS - 1, 300 * SECOND_NS),
    ([16, 300 * SECOND_NS + 1], Reason.OUT_OF_RANGE, 300 * SECOND_NS + 1, 300 * SECOND_NS),
    ([1, b"k" * 1025, b"", 0, 1], Reason.KEY_TOO_LONG, 1025, 1024),
    ([7, b"", b"k" * 1026, False], Reason.KEY_TOO_LONG, 1026, 1025),
    ([9, b"k" * 1017, b"", 0], Reason.KEY_TOO_LONG, 1025, 1024),  # The size of this key includes the revision.
    ([9, b"k", b"v" * (MIB + 1), 0], Reason.VALUE_TOO_LONG, MIB + 1, MIB),
    ([6, [[1, 1, b"k", 0, b"z" * 1026]], [], []], Reason.KEY_TOO_LONG, 1026, 1025),
    ([6, [], [[6, [], put_many(64), put_many(64)]], []], Reason.TOO_MANY_OPERATIONS, 129, 128),
    ([6, [], [[6, [], [[1, b"a", b"v" * MIB]], []]], [[1, b"b", b"v" * MIB]]], Reason.TRANSACTION_TOO_LARGE, 2 * MIB + 2, 3 * MIB // 2),  # noqa: E501
    ([21, 0, SECOND_NS - 1], Reason.OUT_OF_RANGE, SECOND_NS - 1, 365 * 86_400 * SECOND_NS),
    ([21, 0, 365 * 86_400 * SECOND_NS + 1], Reason.OUT_OF_RANGE, 365 * 86_400 * SECOND_NS + 1, 365 * 86_400 * SECOND_NS),  # noqa: E501
    ([23, *range(1, 1002)], Reason.TOO_MANY_OPERATIONS, 1001, 1000),
]  # fmt: skip


@pytest.mark.parametrize(("body", "reason", "size", "size_max"), BOUNDS, ids=lambda each: str(each)[:40])
def test_admission_refuses_what_is_over_a_bound_and_says_by_how_much(
    body: list[Any], reason: Reason, size: int, size_max: int
) -> None:
    """Keys ≤ 1 KiB, values ≤ 1 MiB, a transaction ≤ 128 operations and 1.5 MiB.

    See docs/reference/specification.md#89-bounds-of-admission.
    """
    with pytest.raises(InvalidRequest) as caught:
        admit_body(body, LIMITS)
    assert (caught.value.reason, caught.value.size, caught.value.size_max) == (reason, size, size_max)


@pytest.mark.parametrize(
    "body",
    [
        [1, b"k" * 1024, b"v" * MIB],
        [4, b"k" * 1024 + b"\0", b"z" * 1025, 0, False, False, False, 0, 0],  # A start right after the longest key.
        [6, [], put_many(64), put_many(64)],
        [6, [], [[1, b"a", b"v" * MIB], [1, b"b", b"v" * (MIB // 2 - 2)]], []],
        [16, SECOND_NS],
        [16, 300 * SECOND_NS],
        [7, b"k" * 1024 + b"\0", b"z" * 1025, False],
        [9, b"k" * 1016, b"v" * MIB, 0],
        [6, [[1, 1, b"k", 0, b"z" * 1025]], [[6, [], put_many(63), put_many(63)]], []],
        nested([1, b"a", b""], depth=4),
        [21, 0, SECOND_NS],
        [21, 2**63 - 1, 365 * 86_400 * SECOND_NS],
        [23, *range(1, 1001)],
    ],
    ids=lambda body: str(body)[:20],
)
def test_admission_takes_what_is_exactly_at_its_bound(body: list[Any]) -> None:
    """Each bound accepts a size that equals the bound (docs/reference/specification.md#89-bounds-of-admission)."""
    admit_body(body, LIMITS)


def test_bounds_of_admission_are_none_of_the_shape() -> None:
    """Only admission checks these bounds, which come from a member's configuration. When a member applies an entry, it
    knows only the replicated state.

    See docs/reference/specification.md#89-bounds-of-admission.
    """
    for body, reason, _, _ in BOUNDS:
        assert validate_body(body) is None, reason


def test_a_request_that_would_close_itself_is_refused() -> None:
    """A request with a number at or below the session floor is not executed
    (docs/reference/specification.md#89-bounds-of-admission)."""
    admit_command([7, 5, 4, 2, b"k"], LIMITS)
    with pytest.raises(InvalidRequest):
        admit_command([7, 5, 5, 2, b"k"], LIMITS)


def test_limits_that_cannot_work_are_refused() -> None:
    """A record must fit in a response, or no client could ever read it."""
    with pytest.raises(ValueError, match="value_bytes_max"):
        AdmissionLimits(value_bytes_max=3 * MIB)
    with pytest.raises(ValueError, match="positive"):
        AdmissionLimits(key_bytes_max=0)
    with pytest.raises(ValueError, match="quota_bytes"):
        StoreLimits(quota_bytes=0)


atoms = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.binary(max_size=4) | st.text(max_size=4)
small = st.integers(0, 25) | atoms
cbor_items = st.recursive(
    small, lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=2) | st.integers(0, 9), inner)
)
near_commands = st.tuples(
    st.integers(0, 3), st.integers(0, 3), st.integers(0, 3), st.integers(0, 25), st.lists(cbor_items, max_size=8)
).map(lambda parts: [*parts[:4], *parts[4]])


@st.composite
def almost_commands(draw: st.DrawFn) -> Any:
    """A valid command in which one item, at any depth, was inserted, removed or replaced."""
    _, body = draw(st.sampled_from(EVERY_COMMAND))
    item: Any = [draw(st.integers(0, 2)), draw(st.integers(0, 3)), 0, *body]
    place = item = copy.deepcopy(item)
    for _ in range(draw(st.integers(0, 3))):
        inner = [each for each in place if isinstance(each, list) and each]
        if inner:
            place = draw(st.sampled_from(inner))
    at = draw(st.integers(0, len(place) - 1))
    place[at : at + draw(st.integers(0, 1))] = draw(st.lists(small, max_size=1))
    return item


@given(almost_commands() | near_commands | cbor_items)
def test_admission_answers_any_item_with_a_typed_refusal_or_takes_it(item: Any) -> None:
    """An item that admission accepts can be decoded as a command, and the command is encoded to the same item.

    See docs/reference/specification.md#712-requests-from-outside.
    """
    try:
        admit_command(item, LIMITS)
    except InvalidRequest:
        pass
    else:
        body = cbor2.loads(cbor2.dumps(item[3:]), immutable=True)
        again = command_body(command_of(body))
        assert command_of(again) == command_of(body)
        assert validate_body(again) is None
        # At level 2 this command has two forms: `[1, key, value]` is `[1, key, value, 0, 0]`.
        assert again == body or validate_body(body, 1) is not None


def test_every_refusal_pickles_and_travels_with_its_fields() -> None:
    """An error keeps its fields and builds its text only on demand, so that it can be sent to another process."""
    fields: dict[ResultCode, tuple[Any, ...]] = {
        ResultCode.INVALID_REQUEST: (Reason.KEY_TOO_LONG, 9, 8),
        ResultCode.QUOTA_EXCEEDED: (9, 8),
        ResultCode.BUSY: ("sessions_max", 8),
        ResultCode.SESSION_EXPIRED: (7,),
        ResultCode.REQUEST_CLOSED: (3, 4),
        ResultCode.REVISION_COMPACTED: (3, 4),
        ResultCode.REVISION_AHEAD: (4, 3),
        ResultCode.RESPONSE_TOO_LARGE: (3,),
        ResultCode.LEASE_NOT_FOUND: (7,),
        ResultCode.LEASE_EXISTS: (7,),
        ResultCode.NOT_A_NUMBER: (b"k",),
        ResultCode.AUTH_REVISION_OLD: (7, 8),
        ResultCode.ACCESS_REFUSED: ("user_exists", "ada"),
    }
    assert set(REFUSALS) == set(ResultCode) - {ResultCode.OK} == set(fields)
    for code, arguments in fields.items():
        error = refusal_of(code, arguments)
        again = pickle.loads(pickle.dumps(error))
        assert isinstance(again, KvError)
        assert (type(again), str(again), again.args) == (type(error), str(error), arguments)
    for reason in Reason:  # Results contain the reason alone, as plain text.
        assert [type(each) for each in InvalidRequest(reason).args] == [str]
        assert str(pickle.loads(pickle.dumps(InvalidRequest(reason)))) == str(InvalidRequest(reason))


def test_the_nesting_that_frames_allow_is_within_what_apply_reads() -> None:
    """A command that admission has accepted must never stop a member."""
    nested: Any = 0
    for _ in range(DEPTH_MAX - 1):
        nested = [nested]
    assert decode_item(cbor2.dumps(nested)) == nested
    leader_time, items = decode_payload(encode_batch(3, [cbor2.dumps(nested)]))
    assert (leader_time, len(items)) == (3, 2)

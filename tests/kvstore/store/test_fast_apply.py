"""The fast loop for puts under sessions is compared with its slow twin, which sends every command to
`_apply_command`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any
from unittest import mock

import cbor2
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvstore.errors import ResultCode
from kvstore.limits import StoreLimits
from kvstore.protocol.cbor_heads import SEPARATOR
from kvstore.protocol.commands import (
    ChangeLimits,
    CloseSession,
    Command,
    Delete,
    Get,
    KeepAlive,
    Put,
    RegisterSession,
    UnreadablePayload,
    decode_payload,
    decode_payloads,
    encode_command,
)
from kvstore.protocol.results import ResultItem
from kvstore.store.machine import KvMachine
from raft import INT64_MAX, Entry, EntryKind, encode_batch
from tests.kvstore.support.machine_fixture import restored

SESSIONS = 3


class SlowMachine(KvMachine):
    """A machine without the fast loop. It applies one entry at a time, and does not check in advance which sessions may
    expire."""

    def apply_batch(self, entries: Sequence[Entry]) -> list[list[ResultItem]]:
        return [self.apply(entry) for entry in entries]

    def apply(self, entry: Entry) -> list[ResultItem]:
        if entry.kind is EntryKind.CONFIGURATION:
            return []
        time, items = decode_payload(entry.payload, entry.index)
        if entry.kind is EntryKind.NO_OP and len(items) != 1:
            raise UnreadablePayload(entry.index, "a no_op has a time and nothing else")
        if entry.kind is EntryKind.NO_OP:
            self._begin_term(max(time, self._leader_time))
        if time > self._leader_time:
            self._leader_time = time
            self._expire()
        results = [self._apply_command(item) for item in items[1:]]
        self._store.history.settle()
        return results


LIMITS = st.sampled_from(
    [
        StoreLimits(),
        StoreLimits(quota_bytes=300),
        StoreLimits(results_per_session_max=3),
        StoreLimits(results_bytes_per_session_max=300),
        StoreLimits(results_bytes_max=600),
        StoreLimits(deletions_max=1),
    ]
)
keys = st.sampled_from([b"a", b"b", b"c", b"a", b"b", b"c", b""])
values = st.sampled_from([b"", b"1", b"v" * 100])
session_ids = st.sampled_from([1, 2, SESSIONS, 1, 2, SESSIONS, 0, SESSIONS + 1])
numbers = st.integers(1, 30)
acknowledged = st.sampled_from([0, 0, 0, 1, 2, 3, 5])
puts = st.tuples(session_ids, numbers, acknowledged, st.just(1), keys, values)
odd_atoms: st.SearchStrategy[Any] = st.sampled_from(
    [True, False, None, -1, 2**64 - 1, INT64_MAX, INT64_MAX + 1, "a", b"a", (), (1,), {}]
)
odd_puts = st.tuples(puts, st.integers(0, 5), odd_atoms).map(
    lambda odd: (*odd[0][: odd[1]], odd[2], *odd[0][odd[1] + 1 :])
)
other: st.SearchStrategy[Command] = st.sampled_from(
    [
        Get(b"a"),
        Delete(b"a"),
        Delete(b"b"),
        Delete(b"c"),
        KeepAlive(),
        CloseSession(),
        ChangeLimits(quota_bytes=200),
        ChangeLimits(quota_bytes=200),
    ]
)
others = st.tuples(other, session_ids, numbers, acknowledged).map(
    lambda drawn: cbor2.loads(
        encode_command(drawn[0], session_id=drawn[1], request_no=drawn[2], acknowledged_up_to=drawn[3])
    )
)
wrong_lengths = puts.map(lambda put: put[:5]) | puts.map(lambda put: (*put, 0)) | odd_atoms
anything = st.one_of(*[puts] * 8, *[others] * 4, odd_puts, wrong_lengths)
batches = st.lists(st.lists(anything, min_size=3, max_size=12), min_size=2, max_size=4)


def applied(machine: KvMachine, batches: list[list[Any]]) -> list[list[ResultItem]]:
    """A machine's answers to these batches, after SESSIONS sessions were registered. Each batch is an entry of a later
    leader time."""
    log = [
        [encode_command(RegisterSession(10))] * SESSIONS,
        *([cbor2.dumps(item) for item in each] for each in batches),
    ]
    answers = []
    for time, batch in enumerate(log):
        answers.append(machine.apply(Entry(time + 1, 1, EntryKind.COMMANDS, encode_batch(3 * time, batch))))
        machine.check()
    return answers


@settings(deadline=None, max_examples=250)
@given(limits=LIMITS, batches=batches)
def test_the_hot_loop_answers_and_leaves_the_same_state_as_its_slow_twin(
    limits: StoreLimits, batches: list[list[Any]]
) -> None:
    hot, slow = KvMachine(limits), SlowMachine(limits)

    assert applied(hot, batches) == applied(slow, batches)
    assert hot.state_hash() == slow.state_hash()
    assert list(hot.snapshot().chunks) == list(slow.snapshot().chunks)
    assert restored(hot).state_hash() == hot.state_hash()


@pytest.mark.parametrize("machine", [KvMachine, SlowMachine])
def test_a_thousand_puts_of_a_pipelining_client_keep_only_what_is_not_acknowledged(machine: type[KvMachine]) -> None:
    batch = [(1, no, max(0, no - 8), 1, b"%d" % (no % 50), b"v" * (no % 7)) for no in range(1, 1001)]
    store = machine()

    _, answers = applied(store, [batch])

    assert [answer[:2] for answer in answers] == [(0, no + 1) for no in range(1, 1001)]
    assert (store.status().keys, store.status().results, store.revision) == (50, 8, 1001)
    assert store.apply(  # A retry of the last put gets the original answer.
        Entry(
            9, 1, EntryKind.COMMANDS, encode_batch(3, [encode_command(Put(b"x", b""), session_id=1, request_no=1000)])
        )
    ) == [answers[-1]]


@pytest.mark.parametrize("machine", [KvMachine, SlowMachine])
def test_the_greatest_request_number_is_carried_out_and_the_one_above_is_invalid(machine: type[KvMachine]) -> None:
    store = machine()
    batch = [(1, request_no, 0, 1, b"a", b"") for request_no in (INT64_MAX, INT64_MAX + 1)]

    _, (carried_out, refused) = applied(store, [batch])

    assert (carried_out[0], refused[0]) == (ResultCode.OK, ResultCode.INVALID_REQUEST)
    assert (store.status().results, store.revision) == (1, 2)


payloads = st.one_of(
    *[st.tuples(st.integers(0, 40), st.lists(anything, max_size=3)).map(lambda each: cbor2.dumps([each[0], *each[1]]))]
    * 6,
    st.sampled_from(
        [
            b"",
            b"\x80",  # No time.
            b"\x81\x20",  # A time below 0.
            b"\x82\x01",  # There are fewer items than the head says.
            b"\x81\x01\x81\x02",  # The second of two items is ignored.
            b"\x81\x01\x50",  # A string whose size includes the bytes after it.
            b"\x81\x01" + b"\x50" + SEPARATOR,
            b"\x82\x01\xd8\x1c\x81\x01",  # A shared value, under a tag,
            b"\x82\x01\xd8\x1d\x00",  # and a reference to it.
            b"\x82\x01" + b"\x81" * 20 + b"\x01",
            b"\x82\x01\xf9\x3c\x00",
            b"\x9f\x01\xff",
            cbor2.dumps([1, {"a": [1]}]),
            cbor2.dumps({}),
        ]
    ),
)
kinds = st.sampled_from([EntryKind.COMMANDS] * 12 + [EntryKind.NO_OP, EntryKind.CONFIGURATION])


def outcome(machine: KvMachine, log: list[Entry], cuts: list[int]) -> tuple[Any, ...]:
    """The machine's answers to the runs between the cuts, and its state at the end. If an entry stops the machine, the
    result is this entry."""
    answers: list[list[ResultItem]] = []
    stopped: Any = None
    try:
        for start, end in itertools.pairwise([0, *sorted(cuts), len(log)]):
            answers += machine.apply_batch(log[start:end])
    except UnreadablePayload as error:
        stopped, answers = (error.index, error.reason), []
    machine.check()
    return answers, stopped, machine.state_hash(), machine.leader_time


@settings(deadline=None, max_examples=250)
@given(
    parts=st.lists(st.tuples(kinds, payloads), min_size=1, max_size=12),
    cuts=st.lists(st.integers(0, 13), max_size=6),
)
def test_a_run_of_entries_is_answered_and_refused_as_its_entries_are_one_by_one(
    parts: list[tuple[EntryKind, bytes]], cuts: list[int]
) -> None:
    registered = encode_batch(0, [encode_command(RegisterSession(10))] * SESSIONS)
    log = [
        Entry(index, 1, kind, payload)
        for index, (kind, payload) in enumerate([(EntryKind.COMMANDS, registered), *parts], start=1)
    ]

    in_runs = outcome(KvMachine(), log, [min(cut, len(log)) for cut in cuts])

    assert in_runs == outcome(SlowMachine(), log, [])


@given(st.lists(payloads, max_size=6))
def test_payloads_are_decoded_together_as_they_are_alone_or_not_at_all(raw: list[bytes]) -> None:
    together = decode_payloads(raw)
    assert together is None or repr(together) == repr([decode_payload(each)[1] for each in raw])


def test_sound_payloads_are_decoded_together() -> None:
    raw = [encode_batch(time, [encode_command(Put(b"k", b"v" * time))]) for time in range(300)]
    assert decode_payloads(raw) == [decode_payload(each)[1] for each in raw]
    assert decode_payloads([]) == []


TTL = 20
"""The time to live of the lone clients' sessions. The pauses below can add up to TTL, so that a time can equal a
deadline."""

usual = st.tuples(
    st.integers(1, SESSIONS),
    st.sampled_from([1] * 30 + [0, 2, 30, -4]),  # This number is added to the session's last request number.
    st.sampled_from([0, 1, 1, 1, 2, 5, 40]),  # The number of the session's requests that are still open.
    st.sampled_from([b"a", b"b", b"c", b"dd"]),
    st.sampled_from([b"", b"1", b"v" * 100]),
)
unusual = st.one_of(others, odd_puts, wrong_lengths)
pauses = st.dictionaries(
    st.integers(0, 60), st.sampled_from([TTL // 2, TTL // 2, TTL // 2, TTL, 1, TTL + 10]), max_size=4
)
"""The place of a command in the log → the time that passes before this command. There are few pauses, because an
expired session makes all later commands unusual."""


def log_of_lone_clients(
    plan: list[tuple[Any, ...]], oddities: dict[int, Any], pauses: dict[int, int] | None = None
) -> list[Entry]:
    """A log with an entry for each command. Nearly every command is the client's next request, and a few are
    unusual."""
    payloads, last, time = [encode_batch(0, [encode_command(RegisterSession(TTL))] * SESSIONS)], [0] * 99, 0
    for place, (session_id, step, behind, key, value) in enumerate(plan):
        request_no = max(1, last[session_id] + step)
        last[session_id] = request_no
        time += (pauses or {}).get(place, 0)
        item = (session_id, request_no, max(0, request_no - 1 - behind), 1, key, value)
        payloads.append(encode_batch(time, [cbor2.dumps(oddities.get(place, item))]))
    return [Entry(index, 1, EntryKind.COMMANDS, payload) for index, payload in enumerate(payloads, start=1)]


def calm(plan: list[Any], **others: Any) -> example:
    """An example without unusual commands."""
    given = {"limits": StoreLimits(), "oddities": {}, "pauses": {}, "among": 1, "cuts": [], "watched": False}
    return example(plan=plan, **{**given, **others})


@settings(deadline=None, max_examples=300)
@calm([(1, 1, 0, b"a", b"")] * 8, pauses={2: TTL // 2, 5: TTL // 2})  # Two sessions have their deadline at place 5.
# Only the fast loop touches the sessions.
@calm([(each, 1, 0, b"a", b"") for each in (1, 1, 2, 1)], pauses={1: TTL // 2}, among=2)
# The third put has no room for its result.
@calm([(1, 1, 40, b"a", b"")] * 4, limits=StoreLimits(results_per_session_max=2))
@given(
    limits=LIMITS | st.just(StoreLimits(results_per_session_max=2)),
    plan=st.lists(usual, min_size=5, max_size=60),
    oddities=st.dictionaries(st.integers(0, 60), unusual, max_size=2),
    pauses=pauses,
    among=st.integers(1, SESSIONS),
    cuts=st.lists(st.integers(0, 60), max_size=4),
    watched=st.sampled_from([False, False, False, True]),
)
def test_entries_of_one_put_each_are_applied_in_runs_as_they_are_one_by_one(
    limits: StoreLimits,
    plan: list[Any],
    oddities: dict[int, Any],
    pauses: dict[int, int],
    among: int,
    cuts: list[int],
    watched: bool,
) -> None:
    """`among` is the number of sessions that are used. The other sessions expire."""
    log = log_of_lone_clients([(1 + each[0] % among, *each[1:]) for each in plan], oddities, pauses)
    hot, slow = KvMachine(limits), SlowMachine(limits)
    pictures = [machine.snapshot() for machine in (hot, slow) if watched]

    cuts = [1 + cut % len(log) for cut in cuts]
    cuts.append(1)  # A run with the registrations takes the general path,
    cuts += [place + 2 for place in pauses if place + 2 <= len(log)]  # and so does a run that begins after an expiry.
    assert outcome(hot, log, cuts) == outcome(slow, log, [])
    assert list(hot.snapshot().chunks) == list(slow.snapshot().chunks)
    assert len({tuple(picture.chunks) for picture in pictures}) == watched


@pytest.mark.fast_path
def test_what_is_usual_about_lone_clients_takes_no_other_way() -> None:
    log = log_of_lone_clients([(1 + no % 3, 1, 1, b"%d" % (no % 7), b"v" * (no % 5)) for no in range(200)], {})
    hot, slow = KvMachine(), SlowMachine()
    hot.apply(log[0])
    with mock.patch.object(KvMachine, "_apply_batches", side_effect=AssertionError):
        hot.apply_batch(log[1:])
    assert outcome(hot, [], [])[1:] == outcome(slow, log, [])[1:]

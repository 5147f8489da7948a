"""The hot loop for puts under sessions against its slow twin, which sends every command to `_apply_command`."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.commands import (
    ChangeLimits,
    CloseSession,
    Command,
    Delete,
    Get,
    KeepAlive,
    Put,
    RegisterSession,
    encode_command,
)
from kvstore.limits import StoreLimits
from kvstore.machine import KvMachine
from kvstore.refusals import ResultCode
from kvstore.results import ResultItem
from raft import INT64_MAX, Entry, EntryKind, encode_batch
from tests.kvstore.feeding import restored

SESSIONS = 3


class SlowMachine(KvMachine):
    """No hot loop."""

    def _apply_commands(self, items: tuple[Any, ...]) -> list[ResultItem]:
        return [self._apply_command(item) for item in items[1:]]


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
acknowledged = st.sampled_from([0, 0, 0, 2, 5])
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
    """What a machine answers to these batches, an entry each, after SESSIONS were registered. Leader time goes on."""
    log = [
        [encode_command(RegisterSession(10))] * SESSIONS,
        *([cbor2.dumps(item) for item in each] for each in batches),
    ]
    answers = []
    for time, batch in enumerate(log):
        answers.append(machine.apply(Entry(time + 1, 1, EntryKind.COMMANDS, encode_batch(3 * time, batch))))
        machine.check()
    return answers


@settings(deadline=None, max_examples=400)
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
    assert store.apply(  # A retry of the last one is answered as it was.
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

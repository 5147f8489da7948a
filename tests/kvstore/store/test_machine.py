"""The state machine as the engine sees it: entries, determinism, and that no command can stop it."""

from __future__ import annotations

import hashlib
import os
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.errors import Reason, ResultCode
from kvstore.limits import MIB, StoreLimits
from kvstore.protocol.commands import (
    ChangeLimits,
    Command,
    Compare,
    CompareAndSet,
    Comparison,
    Delete,
    Get,
    LeaseGrant,
    Put,
    RaiseFeatureLevel,
    Range,
    RegisterSession,
    Target,
    Txn,
    UnreadablePayload,
    encode_command,
)
from kvstore.protocol.results import read_result
from kvstore.store.machine import KvMachine
from kvstore.store.snapshot_codec import UnsupportedFeatureLevel
from raft import DEPTH_MAX, Entry, EntryKind, LevelRange, StateMachine, decode_item, encode_batch, encode_item
from tests.kvstore.protocol.test_commands import MALFORMED, MALFORMED_AT_ANY_LEVEL, almost_commands, near_commands
from tests.kvstore.support.machine_fixture import Fed, restored

ROOT = Path(__file__).resolve().parents[3]


def random_log(seed: int, length: int = 60) -> list[Entry]:
    """A log of every kind of command, sent under sessions that come and go."""
    rng = random.Random(seed)
    time, entries = 0, []

    def key() -> bytes:
        return b"%d" % rng.randrange(12)

    def command() -> Command:
        return rng.choice(
            (
                Put(key(), rng.randbytes(rng.randrange(40))),
                Get(key()),
                Delete(key()),
                Range(limit=rng.randrange(4), reverse=rng.random() < 0.5),
                CompareAndSet(key(), b"x", rng.choice((0, 5, b"x"))),
                Txn((Compare(key(), Target.VERSION, Comparison.LESS, 2),), (Put(key(), b"t"), Range()), (Get(key()),)),
                RegisterSession(rng.randrange(1, 50)),
                ChangeLimits(quota_bytes=rng.randrange(600, 1200), deletions_max=rng.randrange(1, 5)),
            )
        )

    for index in range(1, length + 1):
        time += rng.randrange(-2, 8)
        batch = []
        for _ in range(rng.randrange(6)):
            number = rng.randrange(1, 9)
            session = rng.randrange(9)
            raw = encode_command(command(), session_id=session, request_no=number, acknowledged_up_to=number // 3)
            batch.append(raw)
        entries.append(Entry(index, 1, EntryKind.COMMANDS, encode_batch(max(0, time), batch)))
    return entries


def digest_of_a_run(seed: int) -> str:
    """One hash over every result and every state along the way."""
    machine, digest = KvMachine(StoreLimits(sessions_max=5, results_per_session_max=3)), hashlib.sha256()
    for entry in random_log(seed):
        digest.update(repr(machine.apply(entry)).encode() + machine.state_hash())
    machine.check()
    return digest.hexdigest()


def test_the_machine_is_a_state_machine_of_the_engine() -> None:
    """mypy checks this assignment against the protocol raft.interfaces.StateMachine."""
    machine: StateMachine = KvMachine()
    assert machine.leader_time == 0


def test_two_members_fed_the_same_log_agree_on_every_result_and_state() -> None:
    """Raft §5.3, State Machine Safety, needs a deterministic machine."""
    for seed in range(5):
        assert digest_of_a_run(seed) == digest_of_a_run(seed)
    assert digest_of_a_run(1) != digest_of_a_run(2)


@pytest.mark.timeout(60)
def test_the_order_of_hashing_does_not_show() -> None:
    """Processes have different hash seeds, so the order of a set must not influence the state."""
    program = "from tests.kvstore.store.test_machine import digest_of_a_run as d; print([d(s) for s in range(3)])"
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            timeout=50,
        ).stdout
        for hash_seed in ("1", "4242")
    }
    assert printed == {f"{[digest_of_a_run(seed) for seed in range(3)]}\n".encode()}


def test_a_snapshot_at_any_point_of_a_log_continues_to_the_same_end() -> None:
    """A member that restarts from a snapshot has the same state as a member that did not restart.

    See docs/reference/specification.md#51-state-at-an-index.
    """
    log = random_log(3)
    whole = KvMachine()
    states = []
    for entry in log:
        whole.apply(entry)
        states.append(whole.state_hash())
    for cut in range(0, len(log), 7):
        first, second = KvMachine(), KvMachine()
        for entry in log[:cut]:
            first.apply(entry)
        picture = first.snapshot()
        second.restore(picture.header, picture.chunks)
        for entry, state in zip(log[cut:], states[cut:], strict=True):
            second.apply(entry)
            assert second.state_hash() == state


def test_configuration_entries_are_not_for_the_store() -> None:
    """Each command has one result; no_op and configuration have none (docs/reference/specification.md#22-batches)."""
    fed = Fed()
    assert fed.entry(EntryKind.CONFIGURATION, b"\xff not CBOR at all") == []
    assert fed.entry(EntryKind.NO_OP, encode_batch(9, [])) == []
    assert fed.machine.leader_time == 9


def test_a_payload_that_no_build_of_this_level_can_have_made_stops_the_member() -> None:
    """The replicated feature level decides which shapes a log payload may have.

    See docs/reference/specification.md#713-feature-levels.
    """
    fed = Fed()
    for kind, payload in (
        (EntryKind.COMMANDS, b"\xff"),
        (EntryKind.COMMANDS, encode_item(["no time"])),
        (EntryKind.NO_OP, encode_batch(1, [encode_item(1)])),
    ):
        with pytest.raises(UnreadablePayload) as caught:
            fed.entry(kind, payload)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert fed.machine.state_hash() == KvMachine().state_hash()


def test_raising_the_feature_level_beyond_the_build_stops_the_member() -> None:
    """A member that meets a level it does not know stops, and says what to do.

    See docs/reference/specification.md#713-feature-levels.
    """
    fed = Fed()
    fed.do(RaiseFeatureLevel(1))
    assert fed.machine.feature_level == 1
    with pytest.raises(
        UnsupportedFeatureLevel, match=r"at feature level 4.*knows 1 to 3\. Start this member with the build"
    ):
        fed.do(RaiseFeatureLevel(4))


def test_a_feature_level_never_falls() -> None:
    """A level is final (docs/reference/versions.md). A request for a lower level has no effect."""
    machine = KvMachine(levels=LevelRange(1, 3))
    for index, level in enumerate((3, 2), start=1):
        machine.apply(Entry(index, 1, EntryKind.COMMANDS, encode_batch(1, [encode_command(RaiseFeatureLevel(level))])))
        assert machine.feature_level == 3
    machine.check()


@pytest.mark.parametrize(
    ("level", "item", "reason"),
    [(1, *each) for each in MALFORMED_AT_ANY_LEVEL] + [(2, *each) for each in MALFORMED],
    ids=repr,
)
def test_a_malformed_command_is_a_deterministic_error_at_apply(level: int, item: Any, reason: Reason) -> None:
    """Apply gives the same error result on every member and never an exception. Only a code is replicated.

    See docs/reference/specification.md#82-commands.
    """
    fed = Fed(level=level)
    fed.register()
    before = fed.machine.status().revision
    (result,) = fed.feed_items(item)
    if result[0] == ResultCode.REQUEST_CLOSED:
        assert item[:2] == [1, 0]  # Under a session the request number is checked first.
    else:
        assert result == (1, before, reason.value)
    assert fed.machine.revision == before


def test_what_is_malformed_under_a_session_is_kept_like_any_answer() -> None:
    """The request counts as run, with this error as its result
    (docs/reference/specification.md#92-judging-a-request)."""
    fed = Fed()
    session = fed.register()
    first = fed.feed_items([session, 1, 0, 1, b"", b"v"])
    assert first == [(1, 1, "key_empty")]
    assert fed.feed_items([session, 1, 0, 1, b"k", b"v"]) == first
    assert fed.machine.revision == 1


@settings(max_examples=100, deadline=None)
@given(st.lists(almost_commands() | near_commands, max_size=4), st.integers(1, 2))
def test_apply_answers_any_item_of_the_profile_and_stays_sound(items: list[Any], level: int) -> None:
    """Apply never raises an error because of a client's command. Its answers follow the CBOR profile and can be
    decoded.

    See docs/reference/specification.md#82-commands.
    """
    fed, other = Fed(level=level, sessions_max=3, results_per_session_max=2), Fed()
    fed.do(Put(b"a", b"1"))
    fed.register()
    if level > 1:
        fed.do(LeaseGrant(1, 10))
        fed.do(Put(b"k", b"1", lease_id=1))
    other.machine = restored(fed.machine)
    items = [item for item in items if item[3:4] != [20]]  # Another test raises levels.

    results = fed.feed_items(*items)

    assert len(results) == len(items)
    assert other.feed_items(*items) == results
    assert other.machine.state_hash() == fed.machine.state_hash()
    for result in results:
        decoded = decode_item(encode_item(result))
        if result[0] == 0:
            assert read_result(decoded) == read_result(result)


def test_nested_items_up_to_the_depth_of_frames_are_answered() -> None:
    """Apply can decode everything that admission accepts, because its depth bound is greater."""
    item: Any = 1
    for _ in range(DEPTH_MAX - 2):
        item = [item]
    assert Fed().feed_items([0, 0, 0, item])[0][0] == ResultCode.INVALID_REQUEST


def test_limits_are_changed_by_a_command_and_are_in_the_status() -> None:
    """Limits are replicated: the first start sets them, and a command changes them
    (docs/reference/specification.md#810-replicated-limits)."""
    fed = Fed(quota_bytes=500)
    fed.do(ChangeLimits(sessions_max=7))
    assert fed.machine.limits == StoreLimits(quota_bytes=500, sessions_max=7)
    assert fed.machine.revision == 1
    status = fed.machine.status()
    assert (status.quota_bytes, status.keys, status.revision) == (500, 0, 1)


def test_a_result_that_is_none_is_not_read() -> None:
    """A broken answer is an error and never a wrong result."""
    for item in ((), (0,), (99, 1), ("0", 1, ()), (2, 1), (0, 1, (99,))):
        with pytest.raises(ValueError, match=r"not a|is not a valid"):
            read_result(item)


@pytest.mark.parametrize("seed", range(5))
def test_many_gets_at_once_find_what_each_alone_does(seed: int) -> None:
    """The slow twin of `records_of` is `read`, which also tells when an absent key was deleted."""
    machine = KvMachine()
    for entry in random_log(seed):
        machine.apply(entry)
    keys = [b"%d" % number for number in range(12)] + [b"never", b"1"]

    alone = [machine.read((2, key)) for key in keys]

    assert {len(answer[2]) for answer in alone} == {2, 4}  # Some keys are present, some are absent.
    assert machine.records_of(keys) == [answer[2][1] for answer in alone]
    assert all(answer[:2] == (0, machine.revision) for answer in alone)


@pytest.mark.parametrize(("size_bytes", "fits"), [(3 * MIB - 64, True), (3 * MIB - 63, False)])
def test_many_gets_at_once_leave_a_record_that_no_answer_holds_to_the_general_path(size_bytes: int, fits: bool) -> None:
    fed = Fed()
    fed.do(Put(b"large", bytes(size_bytes)))

    (record,) = fed.machine.records_of([b"large"])

    assert (record is not None) == fits == (fed.machine.read((2, b"large"))[0] == ResultCode.OK)


def test_reads_share_the_records_of_the_store() -> None:
    """No copy of a value is made on the way out."""
    fed = Fed()
    value = b"v" * 1000
    fed.machine.apply(Entry(1, 1, EntryKind.COMMANDS, cbor2.dumps([0, [0, 0, 0, 1, b"k", value]])))
    first, second = fed.machine.read((2, b"k")), fed.machine.read((4, b"", None, 0, False, False, False, 0, 0))
    assert first[2][1][0] is second[2][1][0][1]

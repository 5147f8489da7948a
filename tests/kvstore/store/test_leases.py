"""Leases, rule by rule (docs/reference/specification.md#815-leases)."""

from __future__ import annotations

import pytest

from kvstore.errors import InvalidRequest, LeaseExists, LeaseNotFound, Reason, StoreBusy
from kvstore.limits import TIME_NS_MAX, StoreLimits
from kvstore.protocol.commands import (
    Add,
    Append,
    ChangeLimits,
    CompareAndSet,
    Delete,
    Get,
    LeaseGrant,
    LeaseRenew,
    LeaseRevoke,
    Put,
    Range,
    Txn,
    encode_command,
)
from kvstore.protocol.results import LeaseGranted, LeaseRevoked, LeasesRenewed, PutResult, Record
from kvstore.store.history import Event
from kvstore.store.leases import EXPIRED_KEYS_PER_ENTRY
from kvstore.store.machine import KvMachine
from raft import Entry, EntryKind, encode_batch
from tests.kvstore.support.machine_fixture import Fed, restored

TTL = 10


def leased(*lease_keys: bytes, grace: int = 0) -> Fed:
    """A store with lease 1, which was granted at time 0 for TTL, and with the keys that are attached to it."""
    fed = Fed(level=2, lease_grace_ns=grace)
    fed.do(LeaseGrant(0, TTL))
    for key in lease_keys:
        fed.do(Put(key, b"", lease_id=1))
    return fed


def tick(fed: Fed, time: int) -> None:
    """Apply an entry without commands, as an idle leader proposes it."""
    fed.feed([], time=time)


def keys(fed: Fed) -> list[bytes]:
    return [item.key for item in fed.machine.range(Range()).items]


def events_from(fed: Fed, revision: int) -> list[Event]:
    history = fed.machine.history
    return [each for each in history.events(history.first_number, len(history)) if each.revision >= revision]


# Granting.


def test_a_lease_has_the_id_that_is_asked_for_or_the_next_of_a_counter() -> None:
    fed = Fed(level=2)
    assert fed.do(LeaseGrant(0, TTL)) == LeaseGranted(1, 1, TTL)
    assert fed.do(LeaseGrant(2, TTL)) == LeaseGranted(1, 2, TTL)
    assert fed.do(LeaseGrant(0, TTL)) == LeaseGranted(1, 3, TTL)  # 2 is taken.
    assert fed.do(LeaseGrant(2**63 - 1, TTL)) == LeaseGranted(1, 2**63 - 1, TTL)


def test_an_id_in_use_is_refused_and_a_used_one_is_free_again() -> None:
    fed = leased()
    with pytest.raises(LeaseExists):
        fed.do(LeaseGrant(1, TTL))
    fed.do(LeaseRevoke(1))
    assert fed.do(LeaseGrant(1, 3 * TTL)) == LeaseGranted(1, 1, 3 * TTL)
    assert fed.machine.next_deadline == 3 * TTL


def test_the_counter_gives_no_id_twice() -> None:
    fed = leased()
    fed.do(LeaseRevoke(1))
    assert fed.do(LeaseGrant(0, TTL)) == LeaseGranted(1, 2, TTL)


def test_a_grant_that_is_repeated_under_its_session_gives_the_same_lease() -> None:
    fed = Fed(level=2)
    session = fed.register()
    assert [fed.do(LeaseGrant(0, TTL), session, 1) for _ in range(2)] == [LeaseGranted(1, 1, TTL)] * 2
    assert list(fed.machine.leases.by_id) == [1]


def test_at_its_bound_no_lease_is_granted_until_another_ends() -> None:
    fed = Fed(level=2, leases_max=1)
    fed.do(LeaseGrant(0, TTL))
    with pytest.raises(StoreBusy) as caught:
        fed.do(LeaseGrant(0, TTL))
    assert (caught.value.bound, caught.value.limit) == ("leases_max", 1)
    fed.do(LeaseGrant(0, TTL), time=TTL)


def test_neither_grant_nor_renewal_changes_the_revision() -> None:
    fed = leased()
    fed.do(LeaseRenew((1,)))
    assert fed.machine.revision == 1


# Keys.


def test_a_put_attaches_its_key_and_a_put_to_another_lease_moves_it() -> None:
    fed = leased(b"k")
    fed.do(LeaseGrant(0, TTL))
    assert fed.machine.get(b"k").record == Record(b"", 2, 2, 1, 1)
    fed.do(Put(b"k", b"", lease_id=2))
    assert [sorted(each.keys) for each in fed.machine.leases.by_id.values()] == [[], [b"k"]]


@pytest.mark.parametrize("command", [Put(b"k", b"2"), CompareAndSet(b"k", b"2", b"1"), Txn((), (Put(b"k", b"2"),))])
@pytest.mark.parametrize("session", [0, 1])
def test_a_lease_that_lost_its_key_to_a_plain_put_does_not_remove_it(command: Put, session: int) -> None:
    """The result is the same on the general path and on the fast one."""
    fed = leased()
    fed.do(Put(b"k", b"1", lease_id=1))
    fed.register(1000)
    fed.do(command, session, session)
    tick(fed, TTL)
    assert fed.machine.get(b"k").record == Record(b"2", 2, 3, 2)
    assert fed.machine.leases.by_id == {}


def test_single_puts_in_a_run_detach_too() -> None:
    """A run of entries with one put each takes the fast path."""
    fed = leased(b"k")
    session = fed.register(1000)
    raw = [encode_command(Put(key, b"2"), session_id=session, request_no=no + 1) for no, key in enumerate([b"x", b"k"])]
    log = [Entry(no, 1, EntryKind.COMMANDS, encode_batch(0, [each])) for no, each in enumerate(raw, start=9)]
    fed.machine.apply_batch(log)
    fed.machine.check()
    tick(fed, TTL)
    assert keys(fed) == [b"k", b"x"]


def test_a_key_that_keeps_its_lease_goes_with_it() -> None:
    fed = leased(b"a", b"b")
    fed.do(Put(b"a", b"2", keep_lease=True))
    fed.do(Add(b"n", 1))
    fed.do(Put(b"b", b"7", lease_id=1))
    fed.do(Add(b"b", 1))
    tick(fed, TTL)
    assert keys(fed) == [b"n"]


def test_a_deleted_key_leaves_its_lease() -> None:
    fed = leased(b"k")
    fed.do(Delete(b"k"))
    fed.do(Put(b"k", b"new"))
    tick(fed, TTL)
    assert keys(fed) == [b"k"]


def test_an_append_can_be_attached() -> None:
    fed = leased()
    fed.do(Append(b"q/", b"", 1))
    assert len(keys(fed)) == 1
    tick(fed, TTL)
    assert keys(fed) == []


@pytest.mark.parametrize(
    "command", [Put(b"k", b"", lease_id=7), Append(b"k", b"", 7), Txn((), (Put(b"a", b""), Put(b"k", b"", 7)))]
)
def test_an_absent_lease_refuses_the_whole_change(command: Put) -> None:
    fed = leased()
    with pytest.raises(LeaseNotFound) as caught:
        fed.do(command)
    assert caught.value.lease_id == 7
    assert (keys(fed), fed.machine.revision) == ([], 1)


def test_a_transaction_that_is_taken_back_leaves_leases_as_they_were() -> None:
    fed = leased(b"k")
    with pytest.raises(LeaseNotFound):
        fed.do(Txn((), (Put(b"k", b"2"), Put(b"x", b"", lease_id=1), Put(b"y", b"", lease_id=7))))
    assert fed.machine.leases.by_id[1].keys == {b"k"}


def test_the_keys_of_a_lease_are_bounded_and_a_key_that_it_has_can_be_written_again() -> None:
    fed, most = leased(), StoreLimits().delete_keys_max
    raw = [encode_command(Put(b"%d" % number, b"", lease_id=1)) for number in range(most)]
    fed.feed(raw)
    with pytest.raises(InvalidRequest) as caught:
        fed.do(Put(b"one more", b"", lease_id=1))
    assert (caught.value.reason, caught.value.size, caught.value.size_max) == (Reason.LEASE_IS_FULL, most, most)
    assert isinstance(fed.do(Put(b"7", b"again", lease_id=1)), PutResult)
    assert isinstance(fed.do(Put(b"8", b"again", keep_lease=True)), PutResult)
    assert fed.do(LeaseRevoke(1)) == LeaseRevoked(most + 4, most)


# Ends.


def test_a_lease_ends_when_leader_time_reaches_its_deadline_and_not_before() -> None:
    fed = leased(b"k")
    tick(fed, TTL - 1)
    assert keys(fed) == [b"k"]
    tick(fed, TTL)
    assert (keys(fed), fed.machine.leases.by_id) == ([], {})


def test_a_lease_ends_before_the_commands_of_the_entry() -> None:
    fed = leased(b"k")
    found, refused = fed.feed([encode_command(Get(b"k")), encode_command(Put(b"x", b"", lease_id=1))], time=TTL)
    assert found == (0, 3, (2, None, 3, True))
    assert refused[0] == LeaseNotFound.code


def test_a_renewal_in_the_log_behind_the_expiry_gets_0() -> None:
    """No owner may get the answer that an ended lease still lives."""
    fed = leased(b"k")
    assert fed.do(LeaseRenew((1,)), time=TTL) == LeasesRenewed(3, (0,))
    assert keys(fed) == []


def test_a_renewal_postpones_the_end_by_the_whole_time_to_live() -> None:
    fed = leased(b"k")
    assert fed.do(LeaseRenew((1,)), time=TTL - 1) == LeasesRenewed(2, (TTL,))
    tick(fed, 2 * TTL - 2)
    assert keys(fed) == [b"k"]
    tick(fed, 2 * TTL - 1)
    assert keys(fed) == []


def test_one_command_renews_many_and_answers_for_each() -> None:
    fed = leased()
    fed.do(LeaseGrant(5, 3 * TTL))
    assert fed.do(LeaseRenew((5, 9, 1, 5))) == LeasesRenewed(1, (3 * TTL, 0, TTL, 3 * TTL))


def test_leader_time_that_goes_back_shortens_nothing() -> None:
    """A new leader's clock may be a little behind at the beginning."""
    fed = leased(b"k")
    fed.do(LeaseRenew((1,)), time=5)
    fed.do(LeaseRenew((1,)), time=2)
    assert fed.machine.next_deadline == 5 + TTL


def test_the_keys_of_a_lease_go_in_byte_order_at_one_revision() -> None:
    fed = leased(b"b", b"a\xff", b"c", b"a")
    tick(fed, TTL)
    assert [(each.revision, each.key, each.after) for each in events_from(fed, 6)] == [
        (6, key, None) for key in (b"a", b"a\xff", b"b", b"c")
    ]


def test_leases_end_in_the_order_of_deadline_and_id_one_revision_each() -> None:
    """The expiry of sessions does not influence this order."""
    fed = Fed(level=2)
    for lease_id, ttl in ((9, 5), (3, 7), (2, 5), (7, 6)):
        fed.do(LeaseGrant(lease_id, ttl))
        fed.do(Put(b"%d" % lease_id, b"", lease_id=lease_id))
    fed.do(LeaseRenew((9,)), time=1)  # The lease's deadline moves to 6, later than its entry in the heap.
    tick(fed, 100)
    assert [(each.revision, each.key) for each in events_from(fed, 6)] == [(6, b"2"), (7, b"7"), (8, b"9"), (9, b"3")]


def test_a_lease_without_keys_ends_without_a_change() -> None:
    fed = leased()
    tick(fed, TTL)
    assert (fed.machine.revision, fed.machine.leases.by_id) == (1, {})


def test_a_revocation_removes_the_keys_at_one_revision_and_counts_them() -> None:
    fed = leased(b"b", b"a")
    fed.do(Put(b"x", b""))
    assert fed.do(LeaseRevoke(1)) == LeaseRevoked(5, 2)
    assert [each.key for each in events_from(fed, 5)] == [b"a", b"b"]
    assert keys(fed) == [b"x"]
    with pytest.raises(LeaseNotFound):
        fed.do(LeaseRevoke(1))


def test_the_deletions_are_remembered_like_any_other() -> None:
    fed = leased(b"k")
    tick(fed, TTL)
    assert (fed.machine.get(b"k").deleted_revision, fed.machine.get(b"k").exact) == (3, True)


def test_one_entry_ends_a_bounded_number_of_leases_and_the_next_one_goes_on() -> None:
    """The other leases are also due, so the leader proposes the next entry without a wait."""
    fed = Fed(level=2)
    count = 2 * EXPIRED_KEYS_PER_ENTRY
    fed.feed([encode_command(LeaseGrant(0, TTL)) for _ in range(count)])
    fed.feed([encode_command(Put(b"%d" % number, b"", lease_id=number)) for number in range(1, count + 1)])

    left = []
    for time in range(TTL, TTL + 5):
        tick(fed, time)
        left.append(len(fed.machine.leases.by_id))

    each = EXPIRED_KEYS_PER_ENTRY // 2  # A lease and its one key count as two.
    assert left == [count - each, count - 2 * each, count - 3 * each, count - 4 * each, 0]
    assert fed.machine.next_deadline is None


def test_what_is_left_for_the_next_entry_is_the_same_after_a_restore() -> None:
    fed, other = Fed(level=2), Fed()
    fed.feed([encode_command(LeaseGrant(0, TTL)) for _ in range(EXPIRED_KEYS_PER_ENTRY + 9)])
    tick(fed, TTL)
    other.machine = restored(fed.machine)
    assert len(other.machine.leases.by_id) == 9
    assert other.machine.next_deadline == TTL
    for each in (fed, other):
        tick(each, TTL)  # No time has passed since the first entry.
        assert len(each.machine.leases.by_id) == 9
        tick(each, TTL + 1)
        assert each.machine.leases.by_id == {}


# Elections.


def elect(fed: Fed, time: int) -> None:
    fed.entry(EntryKind.NO_OP, encode_batch(time, []))


def test_no_lease_ends_within_the_grace_after_an_election() -> None:
    fed = leased(b"k", grace=30)
    elect(fed, 5)
    assert fed.machine.next_deadline == 35
    tick(fed, 34)
    assert keys(fed) == [b"k"]
    assert fed.do(LeaseRenew((1,)), time=34) == LeasesRenewed(2, (TTL,))  # By now the owner knows the new leader.
    tick(fed, 43)
    assert keys(fed) == [b"k"]
    tick(fed, 44)
    assert keys(fed) == []


def test_the_grace_begins_before_the_leases_that_are_due_at_the_election() -> None:
    fed = leased(b"k", grace=30)
    elect(fed, TTL)
    assert keys(fed) == [b"k"]
    tick(fed, TTL + 30)
    assert keys(fed) == []


def test_the_grace_counts_from_leader_time_which_never_goes_back() -> None:
    fed = leased(b"k", grace=30)
    tick(fed, 8)
    elect(fed, 3)
    assert fed.machine.leases.hold_until == 38


def test_an_election_shortens_no_grace_and_resets_no_deadline() -> None:
    fed = leased(b"k", grace=30)
    elect(fed, 5)
    fed.do(ChangeLimits(lease_grace_ns=0))
    elect(fed, 6)
    assert (fed.machine.leases.hold_until, fed.machine.leases.by_id[1].deadline) == (35, TTL)


def test_sessions_have_no_grace() -> None:
    fed = leased(grace=30)
    fed.register(TTL)
    elect(fed, TTL)
    assert fed.machine.status().sessions == 0


def test_an_election_at_level_1_leaves_no_trace() -> None:
    """A build that knows leases must have the same state as a build that does not."""
    fed = Fed()
    elect(fed, 5)
    assert fed.machine.leases.hold_until == 0
    fed.machine.check()


# Snapshots.


def test_leases_are_in_snapshots_and_in_the_state_hash() -> None:
    fed = leased(b"a", b"b", grace=7)
    fed.do(LeaseGrant(0, 50))
    elect(fed, 1)
    other = Fed()
    other.machine = restored(fed.machine)
    assert other.machine.state_hash() == fed.machine.state_hash()
    fed.do(LeaseRenew((2,)), time=2)
    other.do(Get(b"a"), time=2)
    assert other.machine.state_hash() != fed.machine.state_hash()
    other.do(LeaseRenew((2,)), time=2)
    for each in (fed, other):
        tick(each, 20)
        assert keys(each) == []
        assert each.do(LeaseGrant(0, TTL)) == LeaseGranted(4, 3, TTL)
    assert other.machine.state_hash() == fed.machine.state_hash()


def test_the_longest_times_fit_in_a_snapshot() -> None:
    """The grace has a bound, so a restore accepts every time that apply accepts."""
    fed = Fed(level=2)
    fed.do(ChangeLimits(lease_grace_ns=3_600 * 10**9))
    fed.do(LeaseGrant(0, TIME_NS_MAX), time=2**61)
    elect(fed, 2**61)
    assert restored(fed.machine).state_hash() == fed.machine.state_hash()


def test_a_snapshot_shows_the_leases_of_its_moment() -> None:
    fed = leased(b"k")
    digest, picture = fed.machine.state_hash(), fed.machine.snapshot()
    fed.do(LeaseRenew((1,)), time=5)
    fed.do(LeaseRevoke(1))
    machine = KvMachine()
    machine.restore(picture.header, picture.chunks)
    assert machine.state_hash() == digest


def test_a_refusal_for_want_of_room_is_not_kept_so_a_repetition_may_be_granted() -> None:
    fed = Fed(level=2, leases_max=1)
    session = fed.register()
    fed.do(LeaseGrant(1, 5))
    with pytest.raises(StoreBusy):
        fed.do(LeaseGrant(2, 5), session, 1)

    fed.do(LeaseRevoke(1))

    assert fed.do(LeaseGrant(2, 5), session, 1) == LeaseGranted(1, 2, 5)

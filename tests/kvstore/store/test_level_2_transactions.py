"""Operations and transactions of feature level 2, rule by rule (docs/reference/specification.md#84-transactions)."""

from __future__ import annotations

from typing import Any

import pytest

from kvstore.errors import (
    InvalidRequest,
    KvError,
    NotANumber,
    QuotaExceeded,
    Reason,
    ResponseTooLarge,
)
from kvstore.limits import COMPARE_KEYS_MAX, MIB, StoreLimits
from kvstore.protocol.commands import (
    Add,
    Append,
    ChangeLimits,
    Compact,
    Compare,
    Comparison,
    Delete,
    DeleteRange,
    Get,
    LeaseGrant,
    LeaseRenew,
    LeaseRevoke,
    Operation,
    Put,
    RaiseFeatureLevel,
    Range,
    Target,
    Txn,
    encode_command,
)
from kvstore.protocol.results import (
    AddResult,
    AppendResult,
    DeleteRangeResult,
    DeleteResult,
    GetResult,
    KeyRecord,
    PutResult,
    Record,
    TxnResult,
)
from kvstore.store.machine import KvMachine
from raft import LevelRange
from tests.kvstore.support.machine_fixture import Fed, restored

EQUAL, GREATER = Comparison.EQUAL, Comparison.GREATER


def holding(**records: bytes) -> Fed:
    """A store at level 2 with these keys, which are put in this order from revision 2 on."""
    fed = Fed(level=2)
    for key, value in records.items():
        fed.do(Put(key.encode(), value))
    return fed


def keys(fed: Fed) -> list[bytes]:
    return [item.key for item in fed.machine.range(Range()).items]


def is_absent(key: bytes) -> Compare:
    return Compare(key, Target.CREATE_REVISION, EQUAL, 0)


# Options of a put.


def test_a_put_returns_the_old_record_if_asked() -> None:
    fed = holding(a=b"1")
    assert fed.do(Put(b"a", b"2", previous=True)) == PutResult(3, Record(b"1", 2, 2, 1))
    assert fed.do(Put(b"new", b"", previous=True)) == PutResult(4, None)
    assert fed.item(Put(b"a", b"3", lease_id=0)) == (0, 5, (1,))


def test_a_put_can_keep_the_value_and_the_lease() -> None:
    fed = holding(a=b"1")
    fed.do(LeaseGrant(7, 10))
    fed.do(Put(b"a", b"", lease_id=7, keep_value=True))
    assert fed.machine.get(b"a").record == Record(b"1", 2, 3, 2, 7)
    fed.do(Put(b"a", b"2", keep_lease=True))
    assert fed.machine.get(b"a").record == Record(b"2", 2, 4, 3, 7)
    fed.do(Put(b"a", b"", keep_value=True, keep_lease=True))
    assert fed.machine.get(b"a").record == Record(b"2", 2, 5, 4, 7)


@pytest.mark.parametrize("put", [Put(b"no", b"", keep_value=True), Put(b"no", b"1", keep_lease=True)])
def test_what_an_absent_key_has_cannot_be_kept(put: Put) -> None:
    fed = holding()
    with pytest.raises(InvalidRequest) as caught:
        fed.do(put)
    assert caught.value.reason is Reason.KEY_NOT_FOUND
    assert fed.item(put) == (1, 1, "key_not_found")


def test_a_refusal_of_level_2_is_kept_hashed_and_restored_like_any_answer() -> None:
    """A refusal consists of plain text and numbers, because the replicated state can hold nothing else."""
    fed = holding()
    session = fed.register()
    answers = [
        fed.item(Put(b"no", b"", keep_value=True), session, 1),
        fed.item(Txn((), (Append(b"a", b""), Delete(b"a" + (2).to_bytes(8, "big")))), session, 2),
        fed.item(Put(b"a", b"", lease_id=9), session, 3),
        fed.item(Add(b"a", 1), session, 4),
    ]
    other = Fed()
    other.machine = restored(fed.machine)
    assert other.machine.state_hash() == fed.machine.state_hash()
    assert [other.item(Get(b"a"), session, number) for number in (1, 2, 3, 4)] == answers
    assert [type(each) for each in answers[0]] == [int, int, str]


# Deleting ranges.


def test_a_range_is_deleted_as_one_change_and_counted() -> None:
    fed = holding(a=b"1", b=b"2", c=b"3")
    assert fed.do(DeleteRange(b"a", b"c")) == DeleteRangeResult(5, 2)
    assert keys(fed) == [b"c"]
    assert fed.machine.get(b"a") == GetResult(5, None, 5, True)


def test_the_removed_records_are_returned_if_asked() -> None:
    fed = holding(b=b"2", a=b"1")
    assert fed.do(DeleteRange(b"", None, previous=True)) == DeleteRangeResult(
        4, 2, (KeyRecord(b"a", b"1", 3, 3, 1), KeyRecord(b"b", b"2", 2, 2, 1))
    )


@pytest.mark.parametrize("empty", [DeleteRange(b"b", None), DeleteRange(b"z", b"a"), DeleteRange(b"a", b"a")])
def test_a_range_without_keys_changes_nothing(empty: DeleteRange) -> None:
    fed = holding(a=b"1")
    assert fed.do(empty) == DeleteRangeResult(2, 0)


def test_records_that_do_not_fit_in_an_answer_are_not_deleted() -> None:
    fed = holding(**{str(number): bytes(MIB) for number in range(3)})
    with pytest.raises(ResponseTooLarge):
        fed.do(DeleteRange(b"", None, previous=True))
    assert fed.machine.status().keys == 3
    assert fed.do(DeleteRange(b"", None)) == DeleteRangeResult(5, 3)


def test_one_command_deletes_a_bounded_number_of_keys() -> None:
    """The bound covers all ranges of a command, so that no command stops a member for long. An operator can change this
    bound."""
    fed, most = holding(), StoreLimits().delete_keys_max
    fed.feed([encode_command(Put(b"%05d" % number, b"")) for number in range(most + 1)])
    both = Txn((), (DeleteRange(b"", b"00500"), DeleteRange(b"00500", None)))
    for command in (DeleteRange(b"", None), both):
        with pytest.raises(InvalidRequest) as caught:
            fed.do(command)
        assert caught.value.reason is Reason.TOO_MANY_KEYS
        assert (caught.value.size, caught.value.size_max) == (most + 1, most)
    assert fed.machine.status().keys == most + 1
    fed.do(ChangeLimits(delete_keys_max=most + 1))
    fed.do(both)
    assert fed.machine.status().keys == 0


# Appends.


def test_an_append_makes_a_key_of_its_prefix_and_its_revision() -> None:
    """Keys of this form sort in the order of the writes, and no key is used twice."""
    fed = holding(a=b"")
    assert fed.do(Append(b"q/", b"first")) == AppendResult(3, b"q/\0\0\0\0\0\0\0\x03")
    assert fed.do(Append(b"q/", b"second")) == AppendResult(4, b"q/\0\0\0\0\0\0\0\x04")
    assert keys(fed) == [b"a", b"q/\0\0\0\0\0\0\0\x03", b"q/\0\0\0\0\0\0\0\x04"]
    assert fed.do(Append(b"", b"")) == AppendResult(5, b"\0\0\0\0\0\0\0\x05")


NEXT = (3).to_bytes(8, "big")


@pytest.mark.parametrize(
    "branch",
    [
        (Append(b"q", b""), Append(b"q", b"")),
        (Append(b"q", b""), Put(b"q" + NEXT, b"")),
        (Put(b"q" + NEXT, b""), Append(b"q", b"")),
        (Append(b"q", b"7"), Add(b"q" + NEXT, 1)),
        (Append(b"q", b""), Put(b"q" + NEXT, b"", previous=True)),
        (Append(b"q", b""), Delete(b"q" + NEXT)),
        (Append(b"q", b""), DeleteRange(b"q", b"r")),
        (Append(b"q", b""), Txn((), (DeleteRange(b"", None),))),
    ],
    ids=str,
)
def test_the_key_of_an_append_is_written_once_in_a_transaction(branch: tuple[Operation, ...]) -> None:
    """The key of an append is only known when the append runs. If the transaction has already written this key, the
    transaction is undone."""
    fed = holding(a=b"1")
    digest = fed.machine.state_hash()
    with pytest.raises(InvalidRequest) as caught:
        fed.do(Txn((), (Delete(b"a"), *branch)))
    assert caught.value.reason is Reason.KEY_WRITTEN_TWICE
    assert fed.machine.state_hash() == digest


# Sums.


def test_an_add_counts_from_0_and_answers_the_new_number() -> None:
    fed = holding()
    assert fed.do(Add(b"n", 5)) == AddResult(2, 5)
    assert fed.do(Add(b"n", -7)) == AddResult(3, -2)
    assert fed.machine.get(b"n").record == Record(b"-2", 2, 3, 2)


@pytest.mark.parametrize("value", [b"0", b"-0", b"007", b"-9223372036854775808", b"00000000000000000001"])
def test_a_decimal_integer_of_64_bits_can_be_added_to(value: bytes) -> None:
    assert holding(n=value).do(Add(b"n", 1)) == AddResult(3, int(value) + 1)


@pytest.mark.parametrize(
    "value", [b"", b"-", b"+1", b" 1", b"1 ", b"1.0", b"0x1", b"1_0", "١".encode(), b"--1", b"0" * 21, b"9" * 20]
)
def test_nothing_can_be_added_to_another_value(value: bytes) -> None:
    fed = holding(n=value)
    with pytest.raises(NotANumber) as caught:
        fed.do(Add(b"n", 1))
    assert caught.value.key == b"n"
    assert fed.machine.revision == 2


@pytest.mark.parametrize(("value", "delta"), [(2**63 - 1, 1), (-(2**63), -1), (2**63 - 2, 2)])
def test_a_sum_beyond_64_bits_is_refused(value: int, delta: int) -> None:
    fed = holding(n=b"%d" % value)
    with pytest.raises(NotANumber):
        fed.do(Add(b"n", delta))
    assert fed.machine.get(b"n").record == Record(b"%d" % value, 2, 2, 1)


# Comparisons.


def test_a_lease_is_compared_and_is_0_where_there_is_none() -> None:
    fed = holding(a=b"")
    fed.do(LeaseGrant(7, 10))
    fed.do(Put(b"b", b"", lease_id=7))
    for key, lease_id in ((b"a", 0), (b"b", 7), (b"absent", 0)):
        found = fed.do(Txn((Compare(key, Target.LEASE, EQUAL, lease_id),)))
        assert isinstance(found, TxnResult)
        assert found.succeeded


@pytest.mark.parametrize(
    ("compare", "holds"),
    [
        (Compare(b"a", Target.VALUE, EQUAL, b"x", b"c"), True),
        (Compare(b"a", Target.VALUE, EQUAL, b"x", b"d"), False),
        (Compare(b"a", Target.VALUE, EQUAL, b"x", None), False),
        (Compare(b"a", Target.VERSION, EQUAL, 1, None), True),
        (Compare(b"c", Target.VALUE, EQUAL, b"y", None), True),
        (Compare(b"d", Target.VERSION, EQUAL, 0, None), True),  # An empty range is like an absent key,
        (Compare(b"d", Target.VALUE, Comparison.NOT_EQUAL, b"x", None), False),  # which has no value.
        (Compare(b"c", Target.VERSION, EQUAL, 0, b"a"), True),
        (Compare(b"a", Target.VERSION, GREATER, 0, b""), True),  # The key alone.
    ],
)
def test_a_comparison_of_a_range_holds_if_it_holds_for_every_key(compare: Compare, holds: bool) -> None:
    found = holding(a=b"x", b=b"x", c=b"y").do(Txn((compare,)))
    assert isinstance(found, TxnResult)
    assert found.succeeded is holds


def test_one_command_compares_a_bounded_number_of_keys() -> None:
    """The keys of all evaluated ranges count, including those of inner transactions."""
    fed = holding()
    fed.feed([encode_command(Put(b"%05d" % number, b"")) for number in range(COMPARE_KEYS_MAX // 2 + 1)])
    all_keys = Compare(b"0", Target.VERSION, EQUAL, 1, None)
    fails = Compare(b"0", Target.VERSION, EQUAL, 2, None)
    assert isinstance(fed.do(Txn((all_keys,))), TxnResult)
    for command in (Txn((all_keys, all_keys)), Txn((all_keys,), (Txn((all_keys,)),))):
        with pytest.raises(InvalidRequest) as caught:
            fed.do(command)
        assert caught.value.reason is Reason.TOO_MANY_KEYS
        assert (caught.value.size, caught.value.size_max) == (COMPARE_KEYS_MAX + 2, COMPARE_KEYS_MAX)
    assert isinstance(fed.do(Txn((fails, all_keys))), TxnResult)  # The second comparison is not evaluated.


# Transactions in transactions.


def test_an_inner_transaction_chooses_its_branch_and_answers_within_the_outer_one() -> None:
    fed = holding(a=b"1")
    inner = Txn((is_absent(b"a"),), (Put(b"x", b""),), (Put(b"y", b""), Get(b"a")))

    found = fed.do(Txn((), (Put(b"b", b""), inner, Get(b"y"))))

    record = Record(b"1", 2, 2, 1)
    assert found == TxnResult(
        3,
        True,
        (
            PutResult(3),
            TxnResult(3, False, (PutResult(3), GetResult(3, record))),
            GetResult(3, Record(b"", 3, 3, 1)),
        ),
    )
    assert keys(fed) == [b"a", b"b", b"y"]


def test_all_comparisons_on_the_chosen_path_are_evaluated_before_any_operation() -> None:
    """An inner comparison never sees an outer write, no matter how deep it is nested."""
    fed = holding()
    deepest = Txn((is_absent(b"a"),), (Put(b"deep", b""),))
    inner = Txn((is_absent(b"a"), is_absent(b"b")), (deepest,), (Put(b"wrong", b""),))
    fed.do(Txn((is_absent(b"a"),), (Put(b"a", b""), Put(b"b", b""), inner)))
    assert keys(fed) == [b"a", b"b", b"deep"]


def test_comparisons_beside_the_chosen_path_do_not_count() -> None:
    """The branch that is not taken would compare too many keys, but it does not count."""
    fed = holding()
    fed.feed([encode_command(Put(b"%05d" % number, b"")) for number in range(COMPARE_KEYS_MAX + 1)])
    too_many = Txn((Compare(b"0", Target.VERSION, EQUAL, 1, None),))
    found = fed.do(Txn((is_absent(b"no"),), (), (too_many,)))
    assert isinstance(found, TxnResult)
    assert found.succeeded
    with pytest.raises(InvalidRequest):
        fed.do(Txn((is_absent(b"no"),), (too_many,)))


def test_operations_see_the_writes_before_them_at_every_depth() -> None:
    fed = holding(a=b"1")
    found = fed.do(Txn((), (Add(b"a", 1), Txn((), (Get(b"a"), Delete(b"no"))), DeleteRange(b"b", None), Get(b"a"))))
    seen = GetResult(3, Record(b"2", 2, 3, 2))
    assert found == TxnResult(
        3, True, (AddResult(3, 2), TxnResult(3, True, (seen, DeleteResult(3, False))), DeleteRangeResult(3, 0), seen)
    )


@pytest.mark.parametrize(
    "wrong",
    [Put(b"x", b"", lease_id=9), Put(b"x", b"", keep_value=True), Get(b"x", 99), Add(b"a", 1), Get(b"x", 1)],
    ids=str,
)
def test_an_error_anywhere_undoes_everything(wrong: Operation) -> None:
    """The error undoes changes of records, deletions, the keys of leases, and the history."""
    fed = holding(a=b"text", b=b"", c=b"")
    fed.do(LeaseGrant(7, 10))
    fed.do(Put(b"b", b"", lease_id=7))
    fed.do(Compact(3))
    digest = fed.machine.state_hash()
    change = (Put(b"new", b"", lease_id=7), DeleteRange(b"b", b"d"), Append(b"q", b""))
    with pytest.raises(KvError):
        fed.do(Txn((), (*change, Txn((), (Put(b"e", b""), wrong)))))
    assert fed.machine.state_hash() == digest


def test_the_quota_counts_a_transaction_as_a_whole() -> None:
    fed = Fed(level=2, quota_bytes=150)
    fed.do(Put(b"a", b"v" * 80))
    fed.do(Txn((), (Txn((), (Append(b"x", b"v" * 70),)), DeleteRange(b"a", b"b"))))
    with pytest.raises(QuotaExceeded):
        fed.do(Txn((), (Add(b"n", 1),)))
    with pytest.raises(QuotaExceeded):
        fed.do(Append(b"n", b""))


def test_the_answer_of_a_transaction_is_bounded_with_its_inner_ones() -> None:
    fed = holding(a=bytes(MIB))
    inner = Txn((), (Get(b"a"),))
    with pytest.raises(ResponseTooLarge):
        fed.do(Txn((), (inner, inner, inner)))
    assert isinstance(fed.do(Txn((), (inner, inner))), TxnResult)


# Levels.

OF_LEVEL_2 = [
    Put(b"a", b"", lease_id=1),
    Put(b"a", b"", previous=True),
    Get(b"a", 1),
    DeleteRange(b"", None),
    Append(b"", b""),
    Add(b"n", 1),
    Txn((), (Txn(),)),
    Txn((Compare(b"a", Target.LEASE, EQUAL, 0),)),
    Txn((Compare(b"a", Target.VERSION, EQUAL, 0, None),)),
    Txn((), (), (Add(b"n", 1),)),
    LeaseGrant(0, 10),
    LeaseRevoke(1),
    LeaseRenew((1,)),
    Compact(1),
    ChangeLimits(history_events_max=5),
]


@pytest.mark.parametrize("command", OF_LEVEL_2, ids=str)
def test_at_level_1_every_form_of_level_2_is_refused_by_all_builds_alike(command: Any) -> None:
    """Builds that know the form and older builds both refuse it in the same way, without an effect on the state."""
    fed, older = Fed(), Fed()
    older.machine = KvMachine(levels=LevelRange(1, 1))
    for each in (fed, older):
        each.do(Put(b"a", b"1"))
    code, revision, reason = fed.item(command)
    assert (code, revision) == (1, 2)
    assert reason in ("malformed", "unknown_kind", "out_of_range")
    assert older.item(command) == (code, revision, reason)
    assert fed.machine.state_hash() == older.machine.state_hash()
    assert "events" not in fed.machine.snapshot().header


@pytest.mark.parametrize("command", OF_LEVEL_2, ids=str)
def test_from_level_2_on_each_of_these_forms_is_carried_out(command: Any) -> None:
    fed = holding(b=b"1")
    fed.do(LeaseGrant(1, 10))
    fed.do(Put(b"b", b"2"))
    fed.do(Put(b"b", b"3"))

    assert fed.item(Compact(3) if isinstance(command, Compact) else command)[0] == 0


def test_limits_of_level_2_begin_with_their_defaults_whatever_a_member_was_made_with() -> None:
    """No state of level 1 contains these limits. So a restored member could not know any values that differ from the
    defaults."""
    one, other = Fed(history_events_max=7, leases_max=3), Fed()
    other.machine = restored(one.machine)
    for each in (one, other):
        each.do(RaiseFeatureLevel(2))
    assert one.machine.limits == other.machine.limits
    assert one.machine.state_hash() == other.machine.state_hash()


def test_a_level_that_is_raised_within_an_entry_counts_from_the_next_command_on() -> None:
    fed = Fed()
    grant, raise_it = encode_command(LeaseGrant(0, 10)), encode_command(RaiseFeatureLevel(2))
    refused, _, granted = fed.feed([grant, raise_it, grant])
    assert (refused, granted) == ((1, 1, "unknown_kind"), (0, 1, (21, 1, 10)))

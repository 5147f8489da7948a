"""The meaning of each operation (docs/reference/specification.md#8-store), rule by rule, through the log."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.errors import InvalidRequest, QuotaExceeded, ResponseTooLarge, RevisionAhead, RevisionCompacted
from kvstore.limits import KIB, MIB, PAGE_BYTES_MAX, RESPONSE_BYTES_MAX
from kvstore.protocol.commands import (
    ChangeLimits,
    Compare,
    CompareAndSet,
    Comparison,
    Delete,
    Get,
    Operation,
    Put,
    Range,
    Target,
    Txn,
    spell_out,
)
from kvstore.protocol.results import (
    CompareAndSetResult,
    DeleteResult,
    GetResult,
    KeyRecord,
    PutResult,
    RangeResult,
    Record,
    TxnResult,
)
from raft import EntryKind, encode_batch
from tests.kvstore.support.machine_fixture import Fed


def holding(**records: bytes) -> Fed:
    """A store with these keys, which are put in this order from revision 2 on."""
    fed = Fed()
    for key, value in records.items():
        fed.do(Put(key.encode(), value))
    return fed


def listed(fed: Fed, request: Range) -> list[bytes]:
    return [item.key for item in fed.machine.range(request).items]


# Revisions.


def test_the_revision_starts_at_one_and_rises_by_one_for_each_change() -> None:
    """The empty store is revision 1 (docs/reference/specification.md#81-records-and-revisions)."""
    fed = Fed()
    assert fed.machine.revision == 1
    assert fed.do(Put(b"a", b"1")) == PutResult(2)
    assert fed.do(Put(b"a", b"1")) == PutResult(3)  # Even a put of an equal value makes a new revision.
    assert fed.do(Delete(b"a")) == DeleteResult(4, True)
    assert fed.do(CompareAndSet(b"a", b"2", 0)) == CompareAndSetResult(5, True)


def test_what_changes_nothing_leaves_the_revision_alone() -> None:
    """Failed comparisons, deletions of absent keys, reads, no-ops and configurations change nothing. test_sessions
    covers retries.

    See docs/reference/specification.md#81-records-and-revisions.
    """
    fed = holding(a=b"1")
    for command in (
        Delete(b"b"),
        Get(b"a"),
        Range(),
        CompareAndSet(b"a", b"2", b"other"),
        Txn((), (Get(b"a"), Delete(b"b"))),
    ):
        assert fed.do(command).revision == 2
    fed.entry(EntryKind.NO_OP, encode_batch(5, []))
    fed.entry(EntryKind.CONFIGURATION, b"whatever the members are")
    fed.entry(EntryKind.COMMANDS, encode_batch(5, []))
    assert fed.machine.revision == 2


def test_all_writes_of_a_transaction_share_its_revision() -> None:
    """docs/reference/specification.md#81-records-and-revisions."""
    fed = holding(c=b"1")
    result = fed.do(Txn((), (Put(b"a", b"1"), Delete(b"c"), Put(b"b", b"1"), Get(b"a"))))
    assert isinstance(result, TxnResult)
    assert {each.revision for each in result.results} == {3}
    assert fed.machine.get(b"a").record == Record(b"1", 3, 3, 1)
    assert fed.machine.get(b"b").record == Record(b"1", 3, 3, 1)
    assert fed.machine.get(b"c") == GetResult(3, None, 3, True)


def test_a_record_counts_its_versions_and_begins_again_after_a_deletion() -> None:
    """Version is 1 at creation, +1 per write (docs/reference/specification.md#81-records-and-revisions)."""
    fed = holding(a=b"1")
    fed.do(Put(b"a", b"2"))
    assert fed.machine.get(b"a").record == Record(b"2", create_revision=2, mod_revision=3, version=2, lease_id=0)
    fed.do(Delete(b"a"))
    fed.do(Put(b"a", b"3"))
    assert fed.machine.get(b"a").record == Record(b"3", create_revision=5, mod_revision=5, version=1, lease_id=0)


# Transactions.


def test_operations_see_the_writes_before_them() -> None:
    """Operations run in order and see earlier writes of the same transaction.

    See docs/reference/specification.md#84-transactions.
    """
    fed = holding(a=b"1", b=b"1")
    result = fed.do(Txn((), (Get(b"c"), Put(b"c", b"2"), Get(b"c"), Delete(b"a"), Get(b"a"), Range())))
    assert result == TxnResult(
        4,
        True,
        (
            GetResult(4, None, 0, True),
            PutResult(4),
            GetResult(4, Record(b"2", 4, 4, 1)),
            DeleteResult(4, True),
            GetResult(4, None, 4, True),
            RangeResult(4, (KeyRecord(b"b", b"1", 3, 3, 1), KeyRecord(b"c", b"2", 4, 4, 1)), False, 2),
        ),
    )


def test_an_error_in_a_transaction_takes_every_write_back() -> None:
    """Any error means no effect at all (docs/reference/specification.md#84-transactions)."""
    fed = holding(a=b"1", b=b"1", c=b"1")
    fed.do(Delete(b"c"))
    before = fed.machine.state_hash()
    with pytest.raises(RevisionAhead):
        fed.do(Txn((), (Put(b"a", b"2"), Delete(b"b"), Put(b"c", b"2"), Put(b"d", b"2"), Range(revision=999))))
    assert fed.machine.state_hash() == before


def test_a_key_is_written_once_per_branch_at_apply_too() -> None:
    """Both branches may write the key, because only one of them runs
    (docs/reference/specification.md#84-transactions)."""
    fed = Fed()
    with pytest.raises(InvalidRequest, match="written twice"):
        fed.do(Txn((), (Put(b"a", b"1"), Put(b"a", b"2"))))
    assert fed.do(Txn((), (Put(b"a", b"1"),), (Put(b"a", b"2"),))).revision == 2


def test_a_transaction_runs_the_success_branch_only_if_every_comparison_holds() -> None:
    """An empty list of comparisons holds (docs/reference/specification.md#84-transactions)."""
    fed = holding(a=b"1")
    yes = Compare(b"a", Target.VALUE, Comparison.EQUAL, b"1")
    no = Compare(b"a", Target.VERSION, Comparison.GREATER, 1)
    branches: tuple[tuple[Operation, ...], ...] = ((Get(b"a"),), (Get(b"b"),))
    for compares, succeeded in (((), True), ((yes,), True), ((yes, no), False), ((no,), False)):
        result = fed.do(Txn(compares, *branches))
        assert isinstance(result, TxnResult)
        assert (result.succeeded, len(result.results)) == (succeeded, 1)
        assert result.results[0] == fed.machine.get(b"a" if succeeded else b"b")


@pytest.mark.parametrize("target", [Target.VERSION, Target.CREATE_REVISION, Target.MOD_REVISION])
def test_on_an_absent_key_the_three_numbers_are_zero(target: Target) -> None:
    """docs/reference/specification.md#85-comparisons."""
    fed = Fed()

    def succeeded(comparison: Comparison, operand: int) -> bool:
        result = fed.do(Txn((Compare(b"a", target, comparison, operand),)))
        assert isinstance(result, TxnResult)
        return result.succeeded

    assert succeeded(Comparison.EQUAL, 0)
    assert not succeeded(Comparison.NOT_EQUAL, 0)
    assert succeeded(Comparison.LESS, 1)
    assert not succeeded(Comparison.GREATER, 0)


@pytest.mark.parametrize("comparison", Comparison)
def test_on_an_absent_key_any_comparison_of_the_value_is_false(comparison: Comparison) -> None:
    """Even a comparison with ≠ is false (docs/reference/specification.md#85-comparisons)."""
    result = Fed().do(Txn((Compare(b"a", Target.VALUE, comparison, b"x"),)))
    assert isinstance(result, TxnResult)
    assert not result.succeeded


@pytest.mark.parametrize(
    ("target", "seen"),
    [(Target.VERSION, 2), (Target.CREATE_REVISION, 2), (Target.MOD_REVISION, 4), (Target.VALUE, b"m")],
)
def test_every_comparison_on_every_target_of_a_present_key(target: Target, seen: Any) -> None:
    """The test compares version, create revision, mod revision and value by =, ≠, < and >
    (docs/reference/specification.md#85-comparisons)."""
    fed = holding(a=b"1", b=b"1")
    fed.do(Put(b"a", b"m"))  # Version 2, created at 2, modified at 4.
    below, above = (b"a", b"z") if isinstance(seen, bytes) else (seen - 1, seen + 1)
    expected = {
        Comparison.EQUAL: (False, True, False),
        Comparison.NOT_EQUAL: (True, False, True),
        Comparison.LESS: (False, False, True),
        Comparison.GREATER: (True, False, False),
    }
    for comparison, answers in expected.items():
        for operand, answer in zip((below, seen, above), answers, strict=True):
            result = fed.do(Txn((Compare(b"a", target, comparison, operand),)))
            assert isinstance(result, TxnResult)
            assert result.succeeded is answer, (comparison, operand)


def test_compare_and_set_by_value_by_revision_and_if_absent() -> None:
    """A failed compare-and-set returns the record it saw (docs/reference/specification.md#84-transactions)."""
    fed = Fed()
    assert fed.do(CompareAndSet(b"a", b"1", b"")) == CompareAndSetResult(1, False, None, 0, True)
    assert fed.do(CompareAndSet(b"a", b"1", 0)) == CompareAndSetResult(2, True)
    assert fed.do(CompareAndSet(b"a", b"2", 0)) == CompareAndSetResult(2, False, Record(b"1", 2, 2, 1))
    assert fed.do(CompareAndSet(b"a", b"2", b"1")) == CompareAndSetResult(3, True)
    assert fed.do(CompareAndSet(b"a", b"3", 2)) == CompareAndSetResult(3, False, Record(b"2", 2, 3, 2))
    assert fed.do(CompareAndSet(b"a", b"3", 3)) == CompareAndSetResult(4, True)
    fed.do(Delete(b"a"))
    assert fed.do(CompareAndSet(b"a", b"4", 4)) == CompareAndSetResult(5, False, None, 5, True)


spelled = st.one_of(
    st.builds(Put, st.sampled_from([b"a", b"n"]), st.sampled_from([b"1", b"2" * 300])),
    st.builds(Get, st.sampled_from([b"a", b"n"])),
    st.builds(Delete, st.sampled_from([b"a", b"n"])),
    st.builds(CompareAndSet, st.sampled_from([b"a", b"n"]), st.just(b"3"), st.sampled_from([b"1", b"9", 0, 2, 3])),
)


@given(st.lists(spelled, min_size=1, max_size=8))
def test_an_operation_means_the_transaction_that_it_spells(commands: list[Any]) -> None:
    """Put, get, delete and compare_and_set are short forms of transactions.

    See docs/reference/specification.md#84-transactions.
    """
    short, long = Fed(quota_bytes=400), Fed(quota_bytes=400)
    for command in [Put(b"a", b"1"), *commands]:
        brief, full = short.item(command), long.item(spell_out(command))
        assert brief[:2] == full[:2]
        if brief[0] == 0:
            _, succeeded, results = full[2]
            if isinstance(command, CompareAndSet):
                assert brief[2] == ((5, True) if succeeded else (5, False, *results[0][1:]))
            else:
                assert (brief[2],) == results
        assert short.machine.state_hash() == long.machine.state_hash()


# Absent keys.


def test_an_absent_key_tells_when_it_was_deleted() -> None:
    """`deleted_revision` and `exact` tell when the key was deleted. If `deleted_revision` is 0 and `exact` is true, the
    key never existed (docs/reference/specification.md#87-absent-keys)."""
    fed = holding(a=b"1")
    assert fed.machine.get(b"z") == GetResult(2, None, 0, True)
    fed.do(Delete(b"a"))
    fed.do(Put(b"b", b"1"))
    assert fed.machine.get(b"a") == GetResult(4, None, 3, True)
    assert fed.do(Delete(b"a")) == DeleteResult(4, False, 3, True)


def test_deletions_are_bounded_and_the_floor_speaks_for_the_forgotten() -> None:
    """For a deletion at or below the replicated floor, the answer is "≤ floor". Here deletions_max is reached.

    See docs/reference/specification.md#87-absent-keys.
    """
    fed = Fed(deletions_max=2)
    for key in (b"a", b"b", b"c"):
        fed.do(Put(key, b"1"))
    for key in (b"a", b"b", b"c"):  # Deleted at 5, 6, 7.
        fed.do(Delete(key))
    assert fed.machine.status().deletion_floor == 5
    assert fed.machine.get(b"a") == GetResult(7, None, 5, False)
    assert fed.machine.get(b"never") == GetResult(7, None, 5, False)
    assert fed.machine.get(b"b") == GetResult(7, None, 6, True)


def test_deletions_of_one_transaction_are_forgotten_together() -> None:
    """The floor is a revision. Deletions above it are remembered, and the others are not."""
    fed = Fed(deletions_max=2)
    fed.do(Txn((), tuple(Put(bytes([i]), b"") for i in range(3))))
    fed.do(Txn((), tuple(Delete(bytes([i])) for i in range(3))))
    status = fed.machine.status()
    assert (status.deletion_floor, status.deletions) == (3, 0)


def test_a_key_that_is_written_again_is_not_remembered_as_deleted() -> None:
    """A key is never both in the map of records and in the map of deletions. A second deletion moves the key to the end
    of the deletions."""
    fed = Fed(deletions_max=2)
    for command in (Put(b"a", b""), Put(b"b", b""), Delete(b"a"), Delete(b"b"), Put(b"a", b""), Delete(b"a")):
        fed.do(command)
    fed.do(Put(b"c", b""))
    fed.do(Delete(b"c"))  # This is the third deletion, so the oldest one, of b at 5, is forgotten.
    assert fed.machine.get(b"b") == GetResult(9, None, 5, False)
    assert fed.machine.get(b"a") == GetResult(9, None, 7, True)


def test_lowering_the_bound_of_deletions_takes_effect_at_once() -> None:
    """Replicated limits are changed by a command, on all members at the same entry."""
    fed = holding(a=b"", b=b"", c=b"")
    for key in (b"a", b"b", b"c"):
        fed.do(Delete(key))
    fed.do(ChangeLimits(deletions_max=1))
    assert (fed.machine.status().deletions, fed.machine.status().deletion_floor) == (1, 6)


# Ranges.


def test_ranges_by_interval_by_prefix_from_a_key_and_all() -> None:
    """Every range is `[start, end)` in byte order (docs/reference/specification.md#86-ranges)."""
    fed = Fed()
    for key in (b"b", b"a\xff", b"a", b"\xff", b"b\x00", b"c"):
        fed.do(Put(key, b""))
    assert listed(fed, Range()) == [b"a", b"a\xff", b"b", b"b\x00", b"c", b"\xff"]
    assert listed(fed, Range(b"a", b"b")) == [b"a", b"a\xff"]
    assert listed(fed, Range(b"b")) == [b"b", b"b\x00", b"c", b"\xff"]
    assert listed(fed, Range(b"b", b"b")) == listed(fed, Range(b"c", b"a")) == []
    assert listed(fed, Range(b"b", reverse=True)) == [b"\xff", b"c", b"b\x00", b"b"]


def test_limit_more_and_count() -> None:
    """`count` counts the whole interval, and `more` says that keys beyond the last item exist.

    See docs/reference/specification.md#86-ranges.
    """
    fed = holding(a=b"1", b=b"1", c=b"1")
    cut = fed.machine.range(Range(limit=2))
    assert ([item.key for item in cut.items], cut.more, cut.count) == ([b"a", b"b"], True, 3)
    cut = fed.machine.range(Range(limit=2, reverse=True))
    assert ([item.key for item in cut.items], cut.more, cut.count) == ([b"c", b"b"], True, 3)
    whole = fed.machine.range(Range(limit=3))
    assert (len(whole.items), whole.more) == (3, False)
    assert fed.machine.range(Range(b"b", count_only=True)) == RangeResult(4, (), False, 2)


def test_keys_only_leaves_the_values_out() -> None:
    """docs/reference/specification.md#86-ranges."""
    fed = holding(a=b"1" * 1000)
    assert fed.machine.range(Range(keys_only=True)).items == (KeyRecord(b"a", None, 2, 2, 1),)


def test_a_page_ends_before_the_item_that_would_pass_its_bytes_but_is_never_empty() -> None:
    """The bound applies to the bytes of the response. Each item counts as the lengths of its key and value, plus 64.

    See docs/reference/specification.md#86-ranges.
    """
    fed = holding(a=b"v" * 100, b=b"v" * 100, c=b"v" * 100)
    assert listed(fed, Range(bytes_max=2 * 165)) == [b"a", b"b"]
    assert listed(fed, Range(bytes_max=2 * 165 - 1)) == [b"a"]
    assert listed(fed, Range(bytes_max=1)) == [b"a"]
    assert listed(fed, Range(bytes_max=1, reverse=True)) == [b"c"]
    assert listed(fed, Range(bytes_max=3 * 65, keys_only=True)) == [b"a", b"b", b"c"]
    page = fed.machine.range(Range(bytes_max=1))
    assert (page.more, page.count) == (True, 3)


def test_a_page_is_bounded_whatever_the_request_says() -> None:
    """Pages end at PAGE_BYTES_MAX, even if the request asks for more."""
    fed = Fed()
    for i in range(5):
        fed.do(Put(b"%d" % i, b"v" * (300 * KIB)))
    assert PAGE_BYTES_MAX == MIB
    for asked in (0, 10 * MIB):
        page = fed.machine.range(Range(bytes_max=asked))
        assert (len(page.items), page.more) == (3, True)


@given(st.integers(1, 3), st.booleans(), st.integers(0, 400))
def test_pages_put_together_are_the_whole_listing(limit: int, reverse: bool, bytes_max: int) -> None:
    """The later pages of a listing are requested at the revision of the first page.

    See docs/reference/specification.md#88-pages-of-one-revision.
    """
    fed = holding(a=b"1", b=b"2" * 200, c=b"", d=b"4", e=b"5")
    start, end, revision = b"", None, 0
    found: list[KeyRecord] = []
    while True:
        page = fed.machine.range(Range(start, end, limit, reverse, revision=revision, bytes_max=bytes_max))
        found += page.items
        if not page.more:
            break
        revision = page.revision
        if reverse:
            end = page.items[-1].key
        else:
            start = page.items[-1].key + b"\0"
    assert tuple(found) == fed.machine.range(Range(reverse=reverse)).items


def test_a_page_of_another_revision_is_refused_because_no_history_is_kept() -> None:
    """Below compact_revision the answer is RevisionCompacted. Without a history, compact_revision equals the revision.

    See docs/reference/specification.md#88-pages-of-one-revision.
    """
    fed = holding(a=b"1", b=b"1")
    assert fed.machine.compact_revision == fed.machine.revision == 3
    assert len(fed.machine.range(Range(revision=3)).items) == 2
    with pytest.raises(RevisionCompacted) as compacted:
        fed.machine.range(Range(revision=2))
    assert (compacted.value.revision, compacted.value.compact_revision) == (2, 3)
    with pytest.raises(RevisionAhead) as ahead:
        fed.machine.range(Range(revision=4))
    assert (ahead.value.revision, ahead.value.store_revision) == (4, 3)


def test_inside_a_transaction_a_range_is_at_the_revision_of_its_writes() -> None:
    """The range sees earlier writes of the transaction, so it is no page of the revision before these writes.

    See docs/reference/specification.md#88-pages-of-one-revision.
    """
    fed = holding(a=b"1")
    assert fed.do(Txn((), (Range(revision=2), Delete(b"z"), Range(revision=2)))).revision == 2
    with pytest.raises(RevisionCompacted):
        fed.do(Txn((), (Put(b"b", b"1"), Range(revision=2))))
    assert fed.do(Txn((), (Put(b"b", b"1"), Range(revision=3)))).revision == 3


# Bounds.


def test_the_quota_counts_keys_values_and_sixty_four_each() -> None:
    """Stored bytes are Σ(len(key) + len(value) + 64). Here they reach quota_bytes exactly.

    See docs/reference/specification.md#810-replicated-limits.
    """
    fed = Fed(quota_bytes=2 * 70)
    fed.do(Put(b"abc", b"123"))
    fed.do(Put(b"abd", b"123"))
    assert fed.machine.status().stored_bytes == 140
    before = fed.machine.state_hash()
    for command in (Put(b"abc", b"1234"), Put(b"x", b""), CompareAndSet(b"x", b"", 0), Txn((), (Put(b"x", b""),))):
        with pytest.raises(QuotaExceeded) as caught:
            fed.do(command)
        assert caught.value.quota_bytes == 140 < caught.value.stored_bytes
    assert fed.machine.state_hash() == before


def test_over_the_quota_everything_that_does_not_grow_still_works() -> None:
    """A store that is full, or whose quota was lowered, must be able to shrink."""
    fed = holding(a=b"1" * 10, b=b"1" * 10)
    fed.do(ChangeLimits(quota_bytes=1))
    fed.do(Put(b"a", b"2" * 10))
    fed.do(Txn((), (Put(b"c", b"1" * 10), Delete(b"b"))))
    fed.do(Delete(b"c"))
    fed.do(Put(b"a", b""))
    with pytest.raises(QuotaExceeded):
        fed.do(Put(b"a", b"1"))


def test_a_transaction_that_reads_too_much_is_refused_whole() -> None:
    """A result of at most RESPONSE_BYTES_MAX fits in one frame, and in memory while it is kept."""
    fed = Fed()
    fed.do(Put(b"a", b"v" * MIB))
    assert RESPONSE_BYTES_MAX == 3 * MIB
    fed.do(Txn((), (Get(b"a"), Get(b"a"), Put(b"b", b"1"))))
    before = fed.machine.state_hash()
    for reads in ((Get(b"a"),) * 3, (Range(b"a", b"b"),) * 3):
        with pytest.raises(ResponseTooLarge):
            fed.do(Txn((), (Put(b"b", b"2"), *reads)))
    assert fed.machine.state_hash() == before

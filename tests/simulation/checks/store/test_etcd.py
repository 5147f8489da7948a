"""Each rule about the answers of a port for etcd's clients fails at the smallest deviation, and right answers pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness.sim.checks.history import HistoryChecker
from harness.sim.checks.store.etcd import EtcdChecker, item_of
from harness.sim.checks.store.leases import LeaseChecker, Term
from harness.sim.checks.store.replay import EndedLease
from harness.sim.engine.errors import Violation
from kvstore import Compare, Comparison, Consistency, Put, PutResult, Range, RangeResult, Target, Txn
from kvstore.etcd.schema import make
from tests.simulation.checks.store.test_watches import A2, A4, B3, a_replay

Record = tuple[bytes, int, int, int, int]


def a_checker() -> EtcdChecker:
    """Checks with a replay of 2: a=1; 3: b=2; 4: a=3; 5: a and b are deleted. Lease 7 ended at revision 5."""
    leases = LeaseChecker(lambda _: None, trusts_clocks=True)
    leases.ended(EndedLease(7, 5, is_expired=True))
    return EtcdChecker(a_replay(), leases, lambda _: None, trusts_clocks=True)


def pair(key: bytes, record: Record) -> Any:
    value, create_revision, mod_revision, version, lease = record
    return make(
        "mvccpb.KeyValue",
        key=key,
        value=value,
        create_revision=create_revision,
        mod_revision=mod_revision,
        version=version,
        lease=lease,
    )


def answer(name: str, revision: int, **fields: Any) -> Any:
    return make(name, header=make("ResponseHeader", revision=revision), **fields)


def listing(revision: int, *pairs: Any, count: int | None = None, more: bool = False) -> Any:
    return answer("RangeResponse", revision, kvs=pairs, count=len(pairs) if count is None else count, more=more)


def swapped(revision: int, *, succeeded: bool, operation: Any) -> Any:
    return answer("TxnResponse", revision, succeeded=succeeded, responses=[operation])


WRITTEN = make("ResponseOp", response_put=make("PutResponse"))
SWAP = Txn((Compare(b"a", Target.MOD_REVISION, Comparison.EQUAL, 2),), (Put(b"a", b"3"),), (Range(b"a", b"b"),))
ALL = Range(b"a", b"c")


def test_right_answers_are_results() -> None:
    checker = a_checker()

    assert checker.put(Put(b"a", b"3"), answer("PutResponse", 4)) == PutResult(4)
    previous = answer("PutResponse", 4, prev_kv=pair(b"a", A2))
    assert checker.put(Put(b"a", b"3", previous=True), previous) == PutResult(4)
    assert checker.deleted(b"a", answer("DeleteRangeResponse", 5, deleted=1)).found
    assert not checker.deleted(b"z", answer("DeleteRangeResponse", 3)).found
    found = checker.ranged(ALL, listing(4, pair(b"a", A4), pair(b"b", B3)))
    assert [(item.key, item.value) for item in found.items] == [(b"a", b"3"), (b"b", b"2")]
    assert checker.ranged(Range(b"a", b"c", revision=2), listing(5, pair(b"a", A2))).revision == 5
    assert checker.ranged(Range(b"a", b"c", limit=1), listing(4, pair(b"a", A4), count=2, more=True)).more
    assert checker.transacted(SWAP, swapped(4, succeeded=True, operation=WRITTEN)).results == (PutResult(4),)
    failed = make("ResponseOp", response_range=listing(0, pair(b"a", A4)))
    (seen,) = checker.transacted(SWAP, swapped(4, succeeded=False, operation=failed)).results
    assert isinstance(seen, RangeResult)
    checker.refused_revision(2, is_ahead=False)
    checker.refused_revision(9, is_ahead=True)
    checker.refused_lease(7)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda it: it.put(Put(b"a", b"3"), answer("PutResponse", 6)),
        lambda it: it.put(Put(b"a", b"3"), answer("PutResponse", 3)),
        lambda it: it.put(Put(b"a", b"2"), answer("PutResponse", 4)),
        lambda it: it.put(Put(b"a", b"3", 7), answer("PutResponse", 4)),
        lambda it: it.put(Put(b"a", b"3", previous=True), answer("PutResponse", 4)),
        lambda it: it.deleted(b"a", answer("DeleteRangeResponse", 4, deleted=1)),
        lambda it: it.deleted(b"a", answer("DeleteRangeResponse", 5, deleted=2)),
        lambda it: it.deleted(b"a", answer("DeleteRangeResponse", 4)),
        lambda it: it.ranged(ALL, listing(3, pair(b"a", A4), pair(b"b", B3))),
        lambda it: it.ranged(ALL, listing(4, pair(b"a", A4))),
        lambda it: it.ranged(ALL, listing(4, pair(b"a", A4), pair(b"b", B3), count=3)),
        lambda it: it.ranged(ALL, listing(4, pair(b"a", A4), pair(b"b", B3), more=True)),
        lambda it: it.ranged(Range(b"a", b"c", revision=4), listing(3, pair(b"a", A2), pair(b"b", B3))),
        lambda it: it.transacted(SWAP, swapped(3, succeeded=True, operation=WRITTEN)),
        lambda it: it.transacted(SWAP, answer("TxnResponse", 4, succeeded=True)),
        lambda it: it.refused_revision(4, is_ahead=False),
        lambda it: it.refused_lease(8),
    ],
)
def test_a_wrong_answer_breaks_a_rule(wrong: Callable[[EtcdChecker], object]) -> None:
    with pytest.raises(Violation):
        wrong(a_checker())


def a_term(lease_id: int, now: int) -> Term:
    """A lease in which its owner believes until 100, at a time of its clock."""
    return Term(lease_id, 100, 100, lambda: now)


def with_contenders() -> EtcdChecker:
    """Return a checker whose replay has two contenders for the lock `l`: the leases 1 and 2, since the revisions 6 and
    7."""
    replay = a_replay()
    commands = [
        [0, 0, 0, 21, 0, 100],
        [0, 0, 0, 21, 0, 100],
        [0, 0, 0, 1, b"l/1", b"", 1, 0],
        [0, 0, 0, 1, b"l/2", b"", 2, 0],
    ]
    replay.applied(5, 4, commands, [(0, 5, (21, 1, 100)), (0, 5, (21, 2, 100)), (0, 6, (1,)), (0, 7, (1,))])
    replay.applied(6, 5, [[0, 0, 0, 3, b"l/1"]], [(0, 8, (3, True))])
    return EtcdChecker(replay, LeaseChecker(lambda _: None, trusts_clocks=True), lambda _: None, trusts_clocks=True)


def lock_answer(revision: int, key: bytes) -> Any:
    return answer("v3lockpb.LockResponse", revision, key=key)


def test_a_lock_has_one_owner_who_is_the_first_of_its_line() -> None:
    checker, first = with_contenders(), a_term(1, 0)
    checker.locked(b"l", first, lock_answer(7, b"l/1"), still_wanted=True)
    checker.released(b"l", first)
    checker.locked(b"l", a_term(1, 0), lock_answer(7, b"l/1"), still_wanted=False)
    checker.locked(b"l", a_term(2, 0), lock_answer(8, b"l/2"), still_wanted=True)

    with pytest.raises(Violation, match="first of its line"):
        with_contenders().locked(b"l", a_term(2, 0), lock_answer(7, b"l/2"), still_wanted=True)
    with pytest.raises(Violation, match="first of its line"):
        with_contenders().locked(b"l", a_term(1, 0), lock_answer(8, b"l/1"), still_wanted=True)
    both = with_contenders()
    both.locked(b"l", first, lock_answer(7, b"l/1"), still_wanted=True)
    with pytest.raises(Violation, match="at most one program"):
        both.locked(b"l", a_term(2, 0), lock_answer(8, b"l/2"), still_wanted=True)


def test_an_event_has_the_form_that_the_rules_of_watches_take() -> None:
    put = make("mvccpb.Event", kv=pair(b"a", A4), prev_kv=pair(b"a", A2))
    deleted = make("mvccpb.Event", type=1, kv=make("mvccpb.KeyValue", key=b"a", mod_revision=5))

    assert item_of(put, with_previous=False) == [b"a", list(A4)]
    assert item_of(put, with_previous=True) == [b"a", list(A4), list(A2)]
    assert item_of(deleted, with_previous=True) == [b"a", 5, None]


def test_a_result_of_another_protocol_is_not_older_than_what_was_told_unless_it_is_local() -> None:
    history = HistoryChecker(1, lambda _: None)
    put, read = Put(b"a", b"1"), Range(b"a", b"b")
    history.told(history.called("e0.0", 0, put, 1), PutResult(5), Consistency.LINEARIZABLE, "n1", 2)
    late = RangeResult(4, (), False, 0)

    history.told(history.called("e0.0", 0, read, 3), late, Consistency.LOCAL, "n1", 4)
    with pytest.raises(Violation, match="not older"):
        history.told(history.called("e0.0", 0, read, 5), late, Consistency.LINEARIZABLE, "n1", 6)

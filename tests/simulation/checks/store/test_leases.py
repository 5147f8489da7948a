"""The rules about leases and locks: how long an owner may rely on its lease, and which owner has a lock."""

from __future__ import annotations

from typing import Any

import pytest

from harness.sim.checks.store.leases import Holding, LeaseChecker, Term, safe_end
from harness.sim.checks.store.replay import EndedLease, StoreReplay
from harness.sim.engine.errors import Violation

SECOND_NS = 1_000_000_000
FIRST, SECOND = b"lock/%016x" % 1, b"lock/%016x" % 2


class Bench:
    """A bench with leases 1 and 2, granted at second 1 for 10 s. Each lease has a key in the queue of `lock`, at
    revisions 2 and 3."""

    def __init__(self, *, trusts_clocks: bool = True) -> None:
        self.covered: set[str] = set()
        self.checker = LeaseChecker(self.covered.add, trusts_clocks=trusts_clocks)
        self.replay = self.checker.replay = StoreReplay(self.checker.ended)
        self.clock = SECOND_NS
        self.index = 0
        self.apply(1, [20, 2], (0, 1, (20,)))
        for number in (1, 2):
            self.apply(1, [21, 0, 10 * SECOND_NS], (0, number, (21, number, 10 * SECOND_NS)))
            self.apply(1, [1, b"lock/%016x" % number, b"", number, 0], (0, number + 1, (1,)))

    def apply(self, seconds: int, body: list[Any], result: Any) -> None:
        self.index += 1
        self.replay.applied(self.index, seconds * SECOND_NS, [[0, 0, 0, *body]], [result])

    def term(self, lease_id: int) -> Term:
        """The term of an owner that sent its request at second 1 of its own clock."""
        return Term(lease_id, 10 * SECOND_NS, safe_end(SECOND_NS, 10 * SECOND_NS), lambda: self.clock)


def test_an_owner_believes_until_the_end_less_the_drift_of_two_clocks() -> None:
    bench = Bench()
    term = bench.term(1)
    assert term.expires_at == SECOND_NS + int(9.8 * SECOND_NS)

    bench.clock = term.expires_at - 1
    assert term.is_believed
    bench.clock = term.expires_at
    assert not term.is_believed


def test_a_lease_that_ends_while_its_owner_believes_in_it_is_a_violation() -> None:
    bench = Bench()
    bench.checker.granted(bench.term(1))
    bench.clock = 10 * SECOND_NS

    with pytest.raises(Violation, match="never ends while its owner may believe"):
        bench.apply(11, [6, [], [], []], (0, 4, (6, True, [])))


def test_an_owner_that_hears_late_of_a_lease_that_has_ended_must_not_believe_in_it() -> None:
    bench = Bench()
    bench.checker.ended(EndedLease(1, 3, True))

    with pytest.raises(Violation, match="never ends while its owner may believe"):
        bench.checker.granted(bench.term(1))


@pytest.mark.parametrize(("trusts_clocks", "clock_seconds"), [(False, 5), (True, 11)])
def test_a_lease_may_end_when_its_owner_gave_it_up_and_when_clocks_are_wrong(
    trusts_clocks: bool, clock_seconds: int
) -> None:
    bench = Bench(trusts_clocks=trusts_clocks)
    bench.checker.granted(bench.term(1))
    bench.clock = clock_seconds * SECOND_NS
    bench.apply(11, [6, [], [], []], (0, 5, (6, True, [])))

    assert "a lease expired" in bench.covered
    assert ("a lease expired by clocks that keep to their bound" in bench.covered) is trusts_clocks


def test_a_lease_that_has_ended_is_never_renewed_and_one_that_lives_is() -> None:
    bench = Bench()
    term = bench.term(1)
    bench.checker.renewal_answered(term, 10 * SECOND_NS, 5 * SECOND_NS, had_ended=False)
    assert term.expires_at == safe_end(5 * SECOND_NS, 10 * SECOND_NS)

    with pytest.raises(Violation, match="never renewed"):
        bench.checker.renewal_answered(term, 0, 6 * SECOND_NS, had_ended=False)
    bench.apply(2, [22, 1], (0, 4, (22, 1)))
    bench.checker.renewal_answered(term, 0, 6 * SECOND_NS, had_ended=True)
    with pytest.raises(Violation, match="never renewed"):
        bench.checker.renewal_answered(term, 10 * SECOND_NS, 6 * SECOND_NS, had_ended=True)


def test_a_key_of_a_lease_that_has_ended_cannot_be_read() -> None:
    bench = Bench()
    bench.apply(2, [22, 1], (0, 4, (22, 1)))
    bench.checker.read(3, [(FIRST, 1)])

    with pytest.raises(Violation, match="cannot be read"):
        bench.checker.read(4, [(FIRST, 1)])


def holding(bench: Bench, key: bytes, fence: int) -> Holding:
    return Holding(b"lock", key, fence, bench.term(int(key[-1:])))


def test_the_owner_of_a_lock_is_the_first_of_the_line_at_that_revision() -> None:
    bench = Bench()
    bench.checker.obtained(holding(bench, FIRST, 2), 3)

    with pytest.raises(Violation, match="the owner of a lock is the first"):
        bench.checker.obtained(holding(bench, SECOND, 3), 3)
    with pytest.raises(Violation, match="the owner of a lock is the first"):
        bench.checker.obtained(holding(bench, FIRST, 3), 3)


def test_two_programs_that_believe_in_one_lock_are_a_violation_if_clocks_are_right() -> None:
    bench = Bench()
    bench.checker.obtained(holding(bench, FIRST, 2), 3)
    bench.apply(2, [3, FIRST], (0, 4, (3, True)))

    with pytest.raises(Violation, match="at most one program believes"):
        bench.checker.obtained(holding(bench, SECOND, 3), 4)


def test_a_lock_passes_on_when_its_owner_has_given_it_up() -> None:
    bench = Bench()
    first = holding(bench, FIRST, 2)
    bench.checker.obtained(first, 3)
    bench.apply(2, [3, FIRST], (0, 4, (3, True)))
    bench.clock = first.term.expires_at
    bench.checker.obtained(holding(bench, SECOND, 3), 4)

    assert "a lock passed on" in bench.covered


def test_a_guarded_write_is_carried_out_while_the_key_is_there_and_refused_afterwards() -> None:
    bench = Bench()
    first = holding(bench, FIRST, 2)
    bench.checker.guarded(first, 3, succeeded=True)
    with pytest.raises(Violation, match="guarded write"):
        bench.checker.guarded(first, 3, succeeded=False)
    bench.apply(2, [22, 1], (0, 4, (22, 1)))
    bench.checker.guarded(first, 4, succeeded=False)
    with pytest.raises(Violation, match="guarded write"):
        bench.checker.guarded(first, 4, succeeded=True)


def test_the_fence_of_the_first_of_a_line_only_rises() -> None:
    bench = Bench()
    bench.checker.follow([b"lock"])
    bench.apply(2, [3, FIRST], (0, 4, (3, True)))
    bench.checker.follow([b"lock"])
    bench.apply(3, [1, b"lock/%016x" % 2, b"x", 2, 0], (0, 5, (1,)))
    # The record looks as if the store had reused an old create revision.
    bench.replay.records[FIRST] = (b"", 2, 6, 1, 0)
    bench.replay._versions[FIRST][0].append(6)
    bench.replay._versions[FIRST][1].append((b"", 2, 6, 1, 0))
    bench.replay._events[6] = bench.replay._events[2]
    bench.replay.revision = 6

    with pytest.raises(Violation, match="only rises"):
        bench.checker.follow([b"lock"])

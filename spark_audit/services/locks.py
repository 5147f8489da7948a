"""Judges locks: the fences of a lock must rise in the order in which clients obtained it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import heappop, heappush
from typing import Any, NamedTuple

from spark_audit.history.clocks import Clocks
from spark_audit.history.services import answer_of, parse_service
from spark_audit.services.naming import Finding, RowName, finding
from spark_audit.verdict.words import short

LOCKS = "locks"


class LockCall(NamedTuple):
    """One acquisition of a lock. `lock`: the name of the lock."""

    lock: str
    lease_id: int
    fence: int
    name: RowName


def lock_of(row: Mapping[str, Any]) -> LockCall:
    """Return the acquisition that an acknowledged, well-formed row of a lock records."""
    answer = answer_of(row)
    return LockCall(parse_service(row)["name"], answer["lease_id"], answer["fence"], RowName.of(row))


def lock_findings(calls: Iterable[LockCall], clocks: Clocks) -> Iterator[Finding]:
    """Yield a finding for each acquisition with a wrong fence.

    The fence is wrong if an acquisition of the same lock with a higher fence had returned before the call, or if an
    acquisition with another lease has the same fence.
    """
    by_name: dict[str, list[LockCall]] = {}
    for call in calls:
        by_name.setdefault(call.lock, []).append(call)
    for _, mine in sorted(by_name.items()):
        yield from _repeated(mine)
        clock_ids = sorted({call.name.clock for call in mine})
        for clock in clock_ids:
            yield from _not_above(mine, clock, clocks)


def _repeated(mine: Iterable[LockCall]) -> Iterator[Finding]:
    first: dict[int, LockCall] = {}
    for call in sorted(mine, key=lambda call: (call.name.call_ns, call.name.op_id)):
        other = first.setdefault(call.fence, call)
        if other.lease_id != call.lease_id:
            yield _finding(call, other, "has the fence of another lease")


def _not_above(mine: Iterable[LockCall], clock: str, clocks: Clocks) -> Iterator[Finding]:
    """Yield a finding for each acquisition on this clock whose fence is too low, in one pass over the calls."""
    returned: list[tuple[int, int, LockCall]] = []
    for call in mine:
        margin = clocks.margin_ns(call.name.clock, clock)
        if margin is not None and call.name.return_ns is not None:
            heappush(returned, (call.name.return_ns + margin, call.name.op_id, call))
    highest: LockCall | None = None
    for call in sorted(
        (call for call in mine if call.name.clock == clock), key=lambda call: (call.name.call_ns, call.name.op_id)
    ):
        while returned and returned[0][0] < call.name.call_ns:
            other = heappop(returned)[2]
            if highest is None or other.fence > highest.fence:
                highest = other
        if highest is not None and highest.fence > call.fence:
            yield _finding(call, highest, "has a lower fence than one obtained before its call")


def _finding(call: LockCall, other: LockCall, problem: str) -> Finding:
    rows = [one.name.shown(f"obtained lock {short(one.lock)} with fence {one.fence}") for one in (call, other)]
    obtained = f"{call.name.words} obtained lock {short(call.lock)} with fence {call.fence}"
    text = f"{obtained}: it {problem}, {other.fence} of {other.name.words}"
    return finding(LOCKS, None, text, *rows)

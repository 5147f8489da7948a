"""Judges leases. Computes until when a lease certainly existed, and from when on it had certainly ended. Finds the
operations that contradict these times.

If the answer to a renewal has a time to live, the lease existed when the renewal took effect. So the lease cannot
expire before this time to live has passed since the call of the renewal. The possible drift of the clocks is first
subtracted from the time to live. A revocation may end the lease earlier.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from spark_audit.history.clocks import Clocks
from spark_audit.history.services import answer_of, parse_service
from spark_audit.services.naming import Finding, RowName, finding
from spark_audit.verdict.words import span

LEASES = "leases"
DRIFT_SHARE_MAX = 0.02
"""While a time to live passes, the clocks of the owner and of the leader may drift apart by this share of it, because
each of them drifts by at most 1 % (docs/reference/specification.md#815-leases).
"""


class LeaseCall(NamedTuple):
    """An operation on a lease. `kind`: `grant`, `renew`, `revoke`, or `attach` if the row attached a key to the lease.

    `ttl_ns`: the time to live in the answer to a grant or renewal; 0 if the answer is that there is no such lease.
    """

    lease_id: int
    kind: str
    status: str
    ttl_ns: int
    name: RowName
    key: str | None = None


class LeaseEnd(NamedTuple):
    """Evidence that a lease had ended by `seen_ns`. `name`: the row with the evidence. `words`: a description of the
    evidence."""

    lease_id: int
    seen_ns: int
    name: RowName
    words: str


def calls_of(row: Mapping[str, Any]) -> Iterator[LeaseCall]:
    """Yield the operation on a lease that a well-formed row records, if there is one."""
    status, op = row["status"], row["op"]
    if status == "fail":
        return
    name = RowName.of(row)
    if op == "lease_grant":
        if status == "ok":
            answer = answer_of(row)
            yield LeaseCall(answer["lease_id"], "grant", status, answer["ttl_ns"], name)
    elif op == "lease_renew":
        if status == "ok":
            yield LeaseCall(parse_service(row)["lease_id"], "renew", status, answer_of(row)["ttl_ns"], name)
    elif op == "lease_revoke":
        yield LeaseCall(parse_service(row)["lease_id"], "revoke", status, 0, name)
    elif op == "put" and parse_service(row)["lease_id"]:
        yield LeaseCall(parse_service(row)["lease_id"], "attach", status, 0, name, row["key"])
    elif op == "lock" and status == "ok":
        answer = answer_of(row)
        attached = name._replace(revision=answer["fence"])
        yield LeaseCall(answer["lease_id"], "attach", status, 0, attached, answer["key"])


@dataclass(slots=True)
class Lease:
    """The rows of one lease, in no particular order.

    `alive`: the grants and renewals that were answered with a time to live.
    """

    lease_id: int
    alive: list[LeaseCall] = field(default_factory=list)
    revokes: list[LeaseCall] = field(default_factory=list)
    attached: list[LeaseCall] = field(default_factory=list)
    ends: list[LeaseEnd] = field(default_factory=list)

    def last_promise(self, seen_ns: int, clock: str, clocks: Clocks) -> LeaseCall | None:
        """Return the last grant or renewal that proves that the lease was alive at this time; None if there is none.

        The result is also None if a revocation may have been called by this time, because the revocation may have ended
        the lease.
        """
        for call in self.revokes:
            margin = clocks.margin_ns(call.name.clock, clock)
            if margin is None or call.name.call_ns - margin <= seen_ns:
                return None
        promises = [call for call in self.alive if _lives_at(call, seen_ns, clock, clocks)]
        return max(promises, key=lambda call: (call.name.call_ns + call.ttl_ns, call.name.op_id), default=None)

    def ended_before(self, call_ns: int, clock: str, clocks: Clocks) -> LeaseEnd | None:
        """Return the earliest evidence that the lease had ended before this call; None if there is no such evidence."""
        shown = (end for end in self.ends if _is_before(end.seen_ns, end.name.clock, call_ns, clock, clocks))
        return min(shown, key=lambda end: (end.seen_ns, end.name.op_id, end.words), default=None)


def leases_of(calls: Iterable[LeaseCall], seen: Iterable[LeaseEnd] = ()) -> dict[int, Lease]:
    """Return the leases by id. `seen`: the ends of leases that events of watches show."""
    made: dict[int, Lease] = {}
    for call in calls:
        lease = made.setdefault(call.lease_id, Lease(call.lease_id))
        ended_ns = call.name.return_ns
        if call.kind == "attach":
            lease.attached.append(call)
        elif call.kind == "revoke":
            lease.revokes.append(call)
            if call.status == "ok" and ended_ns is not None:
                lease.ends.append(LeaseEnd(call.lease_id, ended_ns, call.name, f"revoked lease {call.lease_id}"))
        elif call.ttl_ns:
            lease.alive.append(call)
        elif ended_ns is not None:
            words = f"was told that there is no lease {call.lease_id}"
            lease.ends.append(LeaseEnd(call.lease_id, ended_ns, call.name, words))
    for end in seen:
        made.setdefault(end.lease_id, Lease(end.lease_id)).ends.append(end)
    return made


def lease_findings(leases: Mapping[int, Lease], clocks: Clocks) -> Iterator[Finding]:
    """Yield a finding for each renewal that succeeded, and each key that was attached, after the lease had ended."""
    for _, lease in sorted(leases.items()):
        renewed = [call for call in lease.alive if call.kind == "renew"]
        attached = [call for call in lease.attached if call.status == "ok" and call.name.op == "put"]
        for call in sorted([*renewed, *attached], key=lambda call: call.name.op_id):
            end = lease.ended_before(call.name.call_ns, call.name.clock, clocks)
            if end is None or end.name.op_id == call.name.op_id:
                continue
            verb = "renewed" if call.kind == "renew" else "was attached to"
            did = f"{verb} lease {lease.lease_id}"
            gap = span(max(0, call.name.call_ns - end.seen_ns))
            text = f"{call.name.words} {did}, although {end.name.words} {end.words} {gap} before it was called"
            yield finding(LEASES, call.key, text, call.name.shown(did), end.name.shown(end.words))


def early_end(lease: Lease, end: LeaseEnd, key: str, clocks: Clocks) -> Finding | None:
    """Return the finding for a key that its lease deleted too early; None if the lease may have expired by then."""
    promise = lease.last_promise(end.seen_ns, end.name.clock, clocks)
    if promise is None:
        return None
    did = f"was granted {span(promise.ttl_ns)} for lease {lease.lease_id}"
    after = span(max(0, end.seen_ns - promise.name.call_ns))
    shown = f"{end.name.words} {end.words}, {after} after {promise.name.words}, which {did}"
    text = f"lease {lease.lease_id} ended early: {shown}"
    attached = [call for call in lease.attached if call.key == key][:1]
    rows = [call.name.shown(f"attached {key} to lease {lease.lease_id}") for call in attached]
    return finding(LEASES, key, text, promise.name.shown(did), end.name.shown(end.words), *rows)


def _lives_at(call: LeaseCall, seen_ns: int, clock: str, clocks: Clocks) -> bool:
    margin = clocks.margin_ns(call.name.clock, clock)
    certain_ns = call.ttl_ns - int(call.ttl_ns * DRIFT_SHARE_MAX)
    return margin is not None and seen_ns + margin < call.name.call_ns + certain_ns


def _is_before(one_ns: int, one: str, other_ns: int, other: str, clocks: Clocks) -> bool:
    margin = clocks.margin_ns(one, other)
    return margin is not None and one_ns + margin < other_ns

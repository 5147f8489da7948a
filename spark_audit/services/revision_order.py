"""Checks that the events of a revision are in the order in which its operation made the changes.

The facts about a revision are the operation that made it and the messages that delivered its events. Only revisions
with several changes have such facts. If no acknowledged operation made the revision, its messages are compared with the
unknown operations that may have made it, or with the end of a lease, which deletes keys in the order of their bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from spark_audit.services.naming import Finding, RowName, finding
from spark_audit.services.watches import ONCE, WatchPart

KindAndKey: TypeAlias = tuple[str, str]


class Steps(NamedTuple):
    """An operation that changed several keys.

    `keys`: the changed keys, in the order of the changes. `name`: None for the end of a lease.
    """

    keys: tuple[str, ...]
    name: RowName | None


class Listed(NamedTuple):
    """The events of one revision in one message of a watch. `watch`: the op_id of the part with this message."""

    revision: int
    events: tuple[KindAndKey, ...]
    watch: int


def acknowledged(steps: Iterable[Steps]) -> list[Steps]:
    """Return the acknowledged operation that made a revision; empty if there is none."""
    named = [(one.name.op_id, one) for one in steps if one.name is not None]
    return [min(named)[1]] if named else []


def judge_order(listed: Iterable[Listed], sources: Sequence[Steps], parts: Mapping[int, WatchPart]) -> list[Finding]:
    """Compare the messages of a revision with the operations that may have made it.

    There is a finding for each message whose order is not the order of any of these operations. If `sources` is empty,
    there are no findings.
    """
    found: list[Finding] = []
    for message in sorted(listed, key=lambda one: (one.watch, one.events)):
        faults = [_fault(message, source) for source in sources]
        if faults and faults[0] is not None and None not in faults:
            found.append(_wrong(message, *faults[0], sources[0], parts[message.watch]))
    return found


def _fault(message: Listed, source: Steps) -> tuple[KindAndKey, KindAndKey] | None:
    """Return the first two successive events whose order differs from the order of the operation; None if there are
    none.
    """
    place = {key: number for number, key in enumerate(source.keys)}
    known = [(kind, key) for kind, key in message.events if key in place]
    return next(((one, other) for one, other in pairwise(known) if place[one[1]] > place[other[1]]), None)


def _wrong(message: Listed, one: KindAndKey, other: KindAndKey, source: Steps, part: WatchPart) -> Finding:
    told = (
        f"delivered the {one[0]} of {one[1]} before the {other[0]} of {other[1]} (both of revision {message.revision})"
    )
    if source.name is None:
        return finding(
            ONCE, one[1], f"{part.name.words} {told}, although a lease deletes keys in order", part.name.shown(told)
        )
    did = f"changed {other[1]} before {one[1]}"
    text = f"{part.name.words} {told}, although {source.name.words} {did}"
    return finding(ONCE, one[1], text, part.name.shown(told), source.name.shown(did))

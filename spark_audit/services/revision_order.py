"""Judges the order of events within a revision: it is the order of the changes of the operation that made the revision.

The facts about a revision are the operation that made it and the messages that delivered it. Only revisions with
several changes have such facts. Without an acknowledged operation there is nothing to compare with, so the order within
the revision of an unknown write, or of the end of a lease, is not judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from spark_audit.services.naming import Finding, RowName, finding
from spark_audit.services.watches import ONCE, WatchPart

KindAndKey: TypeAlias = tuple[str, str]


class Steps(NamedTuple):
    """An acknowledged operation that changed several keys. `keys`: in the order of its changes."""

    keys: tuple[str, ...]
    name: RowName


class Listed(NamedTuple):
    """The events of one revision in one message of a watch. `watch`: the op_id of the part that delivered them."""

    revision: int
    events: tuple[KindAndKey, ...]
    watch: int


def judge_order(facts: Iterable[Steps | Listed], parts: Mapping[int, WatchPart]) -> list[Finding]:
    """Compare the messages of a revision with the acknowledged operation that made it, if there is one."""
    steps: list[Steps] = []
    listed: list[Listed] = []
    for fact in facts:
        if isinstance(fact, Steps):
            steps.append(fact)
        else:
            listed.append(fact)
    if not steps:
        return []
    source = min(steps, key=lambda one: one.name.op_id)
    place = {key: number for number, key in enumerate(source.keys)}
    found: list[Finding] = []
    for message in sorted(listed, key=lambda one: (one.watch, one.events)):
        known = [(kind, key) for kind, key in message.events if key in place]
        for one, other in pairwise(known):
            if place[one[1]] > place[other[1]]:
                found.append(_wrong(message, one, other, source, parts[message.watch]))
                break
    return found


def _wrong(message: Listed, one: KindAndKey, other: KindAndKey, source: Steps, part: WatchPart) -> Finding:
    told = (
        f"delivered the {one[0]} of {one[1]} before the {other[0]} of {other[1]} (both of revision {message.revision})"
    )
    did = f"changed {other[1]} before {one[1]}"
    text = f"{part.name.words} {told}, although {source.name.words} {did}"
    return finding(ONCE, one[1], text, part.name.shown(told), source.name.shown(did))

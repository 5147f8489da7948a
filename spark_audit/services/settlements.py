"""Results about writes of unknown outcome: writes that events settle, and events whose write is not known yet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from spark_audit.history.clocks import Clocks
from spark_audit.services.key_facts import Candidate
from spark_audit.services.watches import WatchSegment, began_before

CANDIDATES_MAX = 64  # An event with more candidates than this is not settled.

Step: TypeAlias = tuple[str, str, str | None]  # A change: (kind, key, value).


@dataclass(frozen=True, slots=True)
class Settlement:
    """An unknown write whose revision an event shows. `seen_ns`: the arrival of the event, which is later than the
    write's effect."""

    candidate: Candidate
    key: str
    revision: int
    seen_ns: int


class OpenEvent(NamedTuple):
    """An event without an acknowledged change, which an unknown transaction or deletion of a range may have made.

    `seen_ns`: the first arrival of the event, by `clock`, at the part `watch` of a watch. `candidates`: None if there
    are too many.
    """

    key: str
    revision: int
    kind: str
    value: str | None
    seen_ns: int
    clock: str
    watch: int
    candidates: tuple[Candidate, ...] | None

    @property
    def step(self) -> Step:
        """The change that the event reports."""
        return self.kind, self.key, self.value


def all_visible(
    members: Sequence[Candidate], revisions: Sequence[int], segments: Iterable[WatchSegment], clocks: Clocks
) -> bool:
    """Return whether events show all those deletions of `members` that took effect up to the last of these revisions.

    If there are at most as many deletions as revisions, the result is True, because each deletion then made one of the
    revisions. The result is also True if one watch had to deliver all deletions from some revision on, and the store
    had reached this revision before any of `members` was called. `segments`: the watches that cover all keys that the
    deletions may have deleted.
    """
    if len(members) <= len(revisions):
        return True
    low, high = min(revisions), max(revisions)
    return any(
        segment.only in (None, "delete")
        and segment.first <= low
        and high <= segment.last
        and all(_is_after(one, segment, clocks) for one in members)
        for segment in segments
    )


def _is_after(candidate: Candidate, segment: WatchSegment, clocks: Clocks) -> bool:
    """Return whether the deletion can only have taken effect at a revision of the segment, or at a later one."""
    attached = candidate.name.revision
    if candidate.op == "lease" and attached is not None and attached >= segment.first - 1:
        return True
    return began_before(segment, candidate.name, clocks)

"""Watches by themselves: the order of their events, their bookmarks, and how one part resumes another.

A watch is recorded in parts, and each part is a row. Parts that resume each other without a gap are one segment: an
interval of revisions that was delivered whole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_audit.history.operation import as_bytes
from spark_audit.history.services import Message, WatchEvent, messages_of, parse_service
from spark_audit.services.naming import Finding, RowName, finding

ONCE, BOOKMARK, RESUME = "watch_once", "watch_bookmark", "watch_resume"

Range = tuple[bytes, bytes | None]  # From the first key to before the last; None: to the end of all keys.


@dataclass(frozen=True, slots=True)
class WatchPart:
    """A row of a watch. Everything from `first` to `last` was delivered, as far as the row tells.

    `only`: the kind of the events that were asked for, or None. `previous`: whether they have the record before.
    """

    name: RowName
    range: Range
    only: str | None
    previous: bool
    resumes: int | None
    first: int
    last: int
    events: int
    bookmarks: int


@dataclass(frozen=True, slots=True)
class WatchSegment:
    """Parts that follow each other without a gap, in order."""

    parts: tuple[WatchPart, ...]

    @property
    def first(self) -> int:
        """The first revision of the segment."""
        return self.parts[0].first

    @property
    def last(self) -> int:
        """The last revision that was delivered."""
        return self.parts[-1].last

    @property
    def only(self) -> str | None:
        """The kind of events that were asked for."""
        return self.parts[0].only

    def part_of(self, revision: int) -> WatchPart:
        """The part that had to deliver a revision of the segment."""
        return self.parts[max(0, bisect_right(self.parts, revision, key=lambda part: part.first) - 1)]


def part_of_row(row: Mapping[str, Any]) -> tuple[WatchPart, list[Message]]:
    """The part that an acknowledged, well-formed row of a watch tells, and its messages."""
    request = parse_service(row)
    answer, told_messages = messages_of(row)
    messages = list(told_messages)
    first = request["from_revision"] or answer["created_revision"] + 1
    told = [message.revision for message in messages]
    told += [event.revision for message in messages for event in message.events]
    part = WatchPart(
        RowName.of(row),
        range_of(request),
        request["only"],
        request["previous"],
        request["resumes"],
        first,
        max([first - 1, *told]),
        sum(len(message.events) for message in messages),
        sum(not message.events for message in messages),
    )
    return part, messages


def range_of(request: Mapping[str, Any]) -> Range:
    """The interval of keys of a request, in bytes."""
    if request["prefix"] is not None:
        prefix = as_bytes(request["prefix"])
        return prefix, _after_prefix(prefix)
    low, high = request["start"], request["end"]
    return b"" if low is None else as_bytes(low), None if high is None else as_bytes(high)


def _after_prefix(prefix: bytes) -> bytes | None:
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


def covers_key(interval: Range, key: bytes) -> bool:
    """Whether the interval holds the key."""
    return interval[0] <= key and (interval[1] is None or key < interval[1])


def order_findings(part: WatchPart, messages: Sequence[Message]) -> Iterator[Finding]:
    """Yield what is wrong with the order of the events of one part, and with its bookmarks."""
    seen: dict[tuple[int, str], int] = {}
    latest, bookmark, known = 0, 0, _WhenDelivered()
    for number, message in enumerate(messages):
        for event in message.events:
            words = _delivered(event)
            if (event.revision, event.key) in seen:
                yield _wrong(ONCE, part, event, f"delivered {words} twice")
            elif event.revision < latest:
                yield _wrong(ONCE, part, event, f"delivered {words} after revision {latest}")
            elif known.message_of(event.revision, number) != number:
                yield _wrong(ONCE, part, event, f"delivered {words} apart from other events of its revision")
            if event.revision < part.first:
                yield _wrong(ONCE, part, event, f"delivered {words}, but was to begin at revision {part.first}")
            if event.revision <= bookmark:
                yield _wrong(BOOKMARK, part, event, f"delivered {words} after it had told {bookmark} as delivered")
            seen[event.revision, event.key] = number
            latest = max(latest, event.revision)
        if message.events and message.revision > message.events[-1].revision:
            last = message.events[-1]
            yield _wrong(BOOKMARK, part, last, f"told revision {message.revision} with {_delivered(last)} as the last")
        elif not message.events:
            bookmark = max(bookmark, message.revision)


class _WhenDelivered:
    """The message with the events of each revision, of the last revisions only: earlier ones break the order."""

    def __init__(self) -> None:
        self._revision, self._message = 0, -1

    def message_of(self, revision: int, message: int) -> int:
        """The message in which the revision came first, if it is the latest; otherwise this message."""
        if revision != self._revision:
            self._revision, self._message = revision, message
        return self._message


def _delivered(event: WatchEvent) -> str:
    return f"the {event.kind} of {event.key} at revision {event.revision}"


def _wrong(prop: str, part: WatchPart, event: WatchEvent, words: str) -> Finding:
    return finding(prop, event.key, f"{part.name.words} {words}", part.name.shown(words))


def segments_of(parts: Iterable[WatchPart]) -> tuple[list[WatchSegment], list[Finding]]:
    """Join the parts that resume each other. The findings tell where a part begins elsewhere than it should."""
    by_id = {part.name.op_id: part for part in parts}
    following: dict[int, WatchPart] = {}
    begins: list[WatchPart] = []
    found: list[Finding] = []
    for part in sorted(by_id.values(), key=lambda part: part.name.op_id):
        if part.resumes is None:
            begins.append(part)
            continue
        earlier = by_id.get(part.resumes)
        problem = _resume_problem(part, earlier, following)
        if problem is None and earlier is not None:
            following[earlier.name.op_id] = part
            continue
        begins.append(part)
        text = f"{part.name.words} {problem}"
        rows = [part.name.shown(str(problem))]
        if earlier is not None:
            rows.append(earlier.name.shown(f"delivered everything up to revision {earlier.last}"))
        found.append(finding(RESUME, None, text, *rows))
    made: list[WatchSegment] = []
    for part in begins:
        chain = [part]
        while (after := following.get(chain[-1].name.op_id)) is not None:
            chain.append(after)
        made.append(WatchSegment(tuple(chain)))
    return made, found


def _resume_problem(part: WatchPart, earlier: WatchPart | None, following: Mapping[int, WatchPart]) -> str | None:
    if earlier is None:
        return f"resumes #{part.resumes}, which is no watch that was answered"
    if earlier.name.op_id >= part.name.op_id:
        return f"resumes {earlier.name.words}, which is no earlier watch"
    if earlier.name.op_id in following:
        return f"resumes {earlier.name.words}, which {following[earlier.name.op_id].name.words} resumes already"
    if (part.range, part.only) != (earlier.range, earlier.only):
        return f"resumes {earlier.name.words}, which is about other events"
    if part.first != earlier.last + 1:
        how = "delivers again" if part.first <= earlier.last else "leaves out"
        low, high = sorted((part.first, earlier.last + 1))
        many = f"revisions {low} to {high - 1}" if high - low > 1 else f"revision {low}"
        return f"resumes {earlier.name.words} at revision {part.first}, and {how} {many}"
    return None

"""Judges each watch by itself: the order of its events, its bookmarks, and whether each part correctly resumes the part
before it.

A watch is recorded in parts, and each part is a row. A segment is a chain of parts, each of which resumes the part
before it without a gap. All events in the interval of revisions of a segment were delivered.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_audit.history.clocks import Clocks
from spark_audit.history.operation import as_bytes
from spark_audit.history.services import Message, WatchEvent, messages_of, parse_service
from spark_audit.services.naming import Finding, RowName, finding

ONCE, BOOKMARK, RESUME = "watch_once", "watch_bookmark", "watch_resume"

Range = tuple[bytes, bytes | None]  # The keys in [start, end); if the end is None, all keys from the start on.


@dataclass(frozen=True, slots=True)
class WatchPart:
    """A row of a watch, which claims that all events with revisions from `first` to `last` were delivered.

    `only`: the kind of events that the watch asked for; None for all kinds. `previous`: whether the watch asked for
    previous records. `resumes`: the op_id of the part that this part resumes; None if there is none. `events`,
    `bookmarks`: the number of events and of bookmarks that were delivered. `reached_ns`: when the first message arrived
    that shows that the store had reached the revision before `first`; None if there was no such message.
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
    reached_ns: int | None


@dataclass(frozen=True, slots=True)
class WatchSegment:
    """Parts in order, each of which resumes the part before it without a gap."""

    parts: tuple[WatchPart, ...]

    @property
    def first(self) -> int:
        """The first revision of the segment."""
        return self.parts[0].first

    @property
    def last(self) -> int:
        """The last revision of the segment."""
        return self.parts[-1].last

    @property
    def only(self) -> str | None:
        """The kind of events that the watch asked for; None for all kinds."""
        return self.parts[0].only

    def part_of(self, revision: int) -> WatchPart:
        """Return the part that had to deliver this revision of the segment."""
        return self.parts[max(0, bisect_right(self.parts, revision, key=lambda part: part.first) - 1)]


def began_before(segment: WatchSegment, name: RowName, clocks: Clocks) -> bool:
    """Return whether the operation can only have taken effect at the first revision of the segment, or later."""
    for part in segment.parts:
        if part.reached_ns is not None:
            margin = clocks.margin_ns(part.name.clock, name.clock)
            return margin is not None and part.reached_ns + margin < name.call_ns
    return False


def part_of_row(row: Mapping[str, Any]) -> tuple[WatchPart, list[Message]]:
    """Return the part of a watch that an acknowledged, well-formed row records, and the messages of this part."""
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
        next((message.return_ns for message in messages if message.revision >= first - 1), None),
    )
    return part, messages


def range_of(request: Mapping[str, Any]) -> Range:
    """Return the interval of keys in a request, as bytes."""
    if request["prefix"] is not None:
        prefix = as_bytes(request["prefix"])
        return prefix, _after_prefix(prefix)
    low, high = request["start"], request["end"]
    return b"" if low is None else as_bytes(low), None if high is None else as_bytes(high)


def _after_prefix(prefix: bytes) -> bytes | None:
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


def covers_key(interval: Range, key: bytes) -> bool:
    """Return whether the interval contains the key."""
    return interval[0] <= key and (interval[1] is None or key < interval[1])


def order_findings(part: WatchPart, messages: Sequence[Message]) -> Iterator[Finding]:
    """Yield the faults in the order of the events of one part, and in its bookmarks."""
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
                yield _wrong(BOOKMARK, part, event, f"delivered {words} after a bookmark for revision {bookmark}")
            seen[event.revision, event.key] = number
            latest = max(latest, event.revision)
        if message.events and message.revision > message.events[-1].revision:
            last = message.events[-1]
            yield _wrong(
                BOOKMARK, part, last, f"ended a message of revision {message.revision} with {_delivered(last)}"
            )
        elif not message.events:
            bookmark = max(bookmark, message.revision)


class _WhenDelivered:
    """The message with the first event of the latest revision.

    Messages of earlier revisions need not be remembered, because another event of an earlier revision is a violation
    anyway.
    """

    def __init__(self) -> None:
        self._revision, self._message = 0, -1

    def message_of(self, revision: int, message: int) -> int:
        """Return the number of the message in which this revision first occurred.

        `message`: the number of the current message, which is returned if the last call was for another revision.
        """
        if revision != self._revision:
            self._revision, self._message = revision, message
        return self._message


def _delivered(event: WatchEvent) -> str:
    return f"the {event.kind} of {event.key} at revision {event.revision}"


def _wrong(prop: str, part: WatchPart, event: WatchEvent, words: str) -> Finding:
    return finding(prop, event.key, f"{part.name.words} {words}", part.name.shown(words))


def segments_of(parts: Iterable[WatchPart]) -> tuple[list[WatchSegment], list[Finding]]:
    """Join parts to segments. There is a finding for each part that does not resume another part correctly."""
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
        return f"resumes #{part.resumes}, which is not an acknowledged part of a watch"
    if earlier.name.op_id >= part.name.op_id:
        return f"resumes {earlier.name.words}, which is not an earlier part"
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

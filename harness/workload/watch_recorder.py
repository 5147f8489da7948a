"""Records the events that a watch delivers, in rows with a bounded number of events.

Each row continues the row before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

import trio

from harness.recording.history import RunWriter, canonical_json, to_text
from kvstore import Change, Client, Record, RevisionCompacted, StoreError

EVENTS_PER_ROW_MAX = 1_000  # A row of this size has about 150 KB, which readers of histories can hold in memory.
# If a watch delivers nothing for this time, the client requests the revision up to which everything is delivered.
BOOKMARK_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedKeys:
    """The request of a watch for changes of the keys from `start` up to but not including `end`.

    `only`: the only kind of changes to watch; None: both kinds. `previous`: True if each change includes the record
    before it.
    """

    start: bytes
    end: bytes
    only: Literal["put", "delete"] | None = None
    previous: bool = False


class WatchRecorder:
    """One watch, which resumes where it stopped. If the changes that it needs are compacted, the watch starts again."""

    def __init__(self, writer: RunWriter, name: str, watched: WatchedKeys) -> None:
        self._writer, self._name, self._watched = writer, name, watched
        self._lives: Iterator[int] = count()
        self._resumes: int | None = None
        self._delivered = 0  # All changes up to this revision were delivered; 0 before the watch has begun.

    async def follow(self, store: Client, leaves: float, patience_seconds: float) -> None:
        """Watch through `store` until `leaves` (trio time), or until the watch ends by itself."""
        while trio.current_time() < leaves:
            part = _Part(self._writer, self._row())
            ended = await self._record(part, store, leaves, patience_seconds)
            if ended == "compacted":
                self._resumes, self._delivered = None, 0
            if ended != "full":
                return

    def _row(self) -> dict[str, object]:
        request = {
            "start": to_text(self._watched.start) if self._watched.start else None,
            "end": to_text(self._watched.end),
            "prefix": None,
            "from_revision": self._delivered + 1 if self._delivered else 0,
            "only": self._watched.only,
            "previous": self._watched.previous,
            "resumes": self._resumes,
        }
        return {"client": f"{self._name}.{next(self._lives)}", "op": "watch", "request": canonical_json(request)}

    async def _record(self, part: _Part, store: Client, leaves: float, patience_seconds: float) -> str:
        """Record one row of the watch. Returns the reason for its end: `full`, `cancelled`, `compacted` or `broken`."""
        ended, begun = "cancelled", False
        try:
            async with store.watch(
                start=self._watched.start,
                end=self._watched.end,
                from_revision=self._delivered + 1 if self._delivered else 0,
                previous=self._watched.previous,
                only=self._watched.only,
                deadline_seconds=patience_seconds,
            ) as watch:
                begun = True
                part.created_revision = self._delivered = self._delivered or watch.revision
                while trio.current_time() < leaves:
                    changes: tuple[Change, ...] = ()
                    with trio.move_on_at(min(leaves, trio.current_time() + BOOKMARK_SECONDS)):
                        changes = await watch.next_batch()
                    if changes:
                        part.deliver(changes, self._watched.previous)
                        self._delivered = changes[-1].revision
                    elif watch.revision > self._delivered:
                        part.bookmark(watch.revision)
                        self._delivered = watch.revision
                    if part.events >= EVENTS_PER_ROW_MAX:
                        ended = "full"
                        break
        except RevisionCompacted:
            ended = "compacted"
        except StoreError as error:
            if not begun:
                part.fail(error.word)
                return "broken"
            ended = "broken"
        if ended == "compacted" and not begun:
            part.fail("RevisionCompacted")
            return ended
        self._resumes = part.finish("cancelled" if ended == "full" else ended)
        return ended


class _Part:
    """The row of a watch that is being recorded."""

    def __init__(self, writer: RunWriter, row: dict[str, object]) -> None:
        self._writer = writer
        self._op_id = writer.call({**row, "call_ns": writer.clock.now_ns()})
        self._messages: list[list[Any]] = []
        self.created_revision = 0
        self.events = 0

    def deliver(self, changes: tuple[Change, ...], previous: bool) -> None:
        """Add the changes of one revision."""
        events = [_event(change, previous) for change in changes]
        self._messages.append([self._writer.clock.now_ns(), changes[-1].revision, events])
        self.events += len(events)

    def bookmark(self, revision: int) -> None:
        """Record that all changes up to this revision were delivered."""
        self._messages.append([self._writer.clock.now_ns(), revision, []])

    def finish(self, end: str) -> int:
        """Write the row. Returns its op_id."""
        answer = {"created_revision": self.created_revision, "messages": self._messages, "end": end}
        self._writer.end(
            self._op_id,
            status="ok",
            return_ns=self._writer.clock.now_ns(),
            output={"answer": canonical_json(answer)},
        )
        return self._op_id

    def fail(self, word: str) -> None:
        """Write the row of a watch that could not begin."""
        self._writer.end(self._op_id, status="fail", error=word, return_ns=self._writer.clock.now_ns())


def _event(change: Change, previous: bool) -> list[Any]:
    record, key = change.record, to_text(change.key)
    before = _told(change.previous) if previous and change.previous is not None else None
    if record is None:
        return [change.revision, change.kind, key, None, 0, 0, 0, before]
    value = to_text(record.value)
    return [change.revision, change.kind, key, value, record.create_revision, record.version, record.lease_id, before]


def _told(record: Record) -> list[Any]:
    return [to_text(record.value), record.create_revision, record.mod_revision, record.version, record.lease_id]

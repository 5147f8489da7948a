"""A machine at the end of a log, to which the tests of the store feed commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cbor2

from kvstore.limits import FEATURE_LEVEL_INITIAL, StoreLimits
from kvstore.protocol.commands import (
    ChangeLimits,
    Command,
    RaiseFeatureLevel,
    RegisterSession,
    encode_command,
    judged_command,
    judged_mark,
)
from kvstore.protocol.results import Result, ResultItem, SessionRegistered, read_result
from kvstore.store.machine import KvMachine
from raft import Entry, EntryKind, encode_batch

SECOND = 1_000_000_000


class Fed:
    """A machine, and the log that it was fed. A test can feed `entries` to another machine.

    Level 1 lacks some of the limits. So at a higher level, a command sets `limits` after the level was raised, as in
    every store.
    """

    def __init__(self, *, level: int = FEATURE_LEVEL_INITIAL, **limits: int) -> None:
        self.machine = KvMachine(StoreLimits(**limits))
        self.entries: list[Entry] = []
        if level > FEATURE_LEVEL_INITIAL:
            self.do(RaiseFeatureLevel(level))
            self.do(ChangeLimits(**limits))

    def feed(self, commands: Sequence[bytes], *, time: int = 0) -> list[ResultItem]:
        """Apply one `commands` entry of encoded commands; returns its result items. `time`: leader time in ns."""
        return self.entry(EntryKind.COMMANDS, encode_batch(time, commands))

    def feed_items(self, *items: Any, time: int = 0) -> list[ResultItem]:
        """Apply one `commands` entry of any CBOR items, well shaped or not."""
        return self.feed([cbor2.dumps(item) for item in items], time=time)

    def entry(self, kind: EntryKind, payload: bytes) -> list[ResultItem]:
        """Apply one entry of any kind."""
        self.entries.append(Entry(len(self.entries) + 1, 1, kind, payload))
        results = self.machine.apply(self.entries[-1])
        self.machine.check()
        return results

    def item(self, command: Command, session: int = 0, no: int = 0, ack: int = 0, *, time: int = 0) -> ResultItem:
        """Apply one command in an entry of its own; returns the result item."""
        raw = encode_command(command, session_id=session, request_no=no, acknowledged_up_to=ack)
        (result,) = self.feed([raw], time=time)
        return result

    def as_user(
        self, user: str, command: Command, session: int = 0, no: int = 0, *, revision: int | None = None, time: int = 0
    ) -> ResultItem:
        """Apply one command that a member has judged for a user, by default under the present auth revision."""
        raw = encode_command(command, session_id=session, request_no=no)
        mark = judged_mark(self.machine.access.revision if revision is None else revision, user)
        (result,) = self.feed([judged_command(raw, mark)], time=time)
        return result

    def do(self, command: Command, session: int = 0, no: int = 0, ack: int = 0, *, time: int = 0) -> Result:
        """Apply one command; returns its result or raises its error."""
        return read_result(self.item(command, session, no, ack, time=time))

    def register(self, ttl_ns: int = 10 * SECOND, *, time: int = 0) -> int:
        """Open a session; returns its id."""
        result = self.do(RegisterSession(ttl_ns), time=time)
        assert isinstance(result, SessionRegistered)
        return result.session_id


def restored(machine: KvMachine) -> KvMachine:
    """A machine that took over the state of another from its snapshot, through CBOR as on disk."""
    picture = machine.snapshot()
    other = KvMachine()
    other.restore(cbor2.loads(cbor2.dumps(dict(picture.header))), list(picture.chunks))
    other.check()
    return other

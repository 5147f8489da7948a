"""A store with a hub, and clients that read what it sends: the fixture of the tests of watches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import cbor2

from kvstore.errors import RevisionCompacted
from kvstore.limits import ServiceLimits
from kvstore.protocol.commands import Command, Delete, Operation, Put, RaiseFeatureLevel, Txn, encode_command
from kvstore.protocol.messages import decode_response
from kvstore.protocol.results import read_result
from kvstore.protocol.watches import (
    NO_FLAGS,
    Cancelled,
    Change,
    Created,
    Events,
    Progress,
    WatchFlag,
    WatchMessage,
    WatchSpec,
    decode_message,
)
from kvstore.store.history import History
from kvstore.store.machine import KvMachine
from kvstore.watch.hub import WatchHub
from raft import FRAME_BYTES_MAX_CLIENT, FrameSplitter
from tests.kvstore.support.machine_fixture import Fed


@dataclass
class Seen:
    """The messages that were sent to one watch."""

    messages: list[WatchMessage] = field(default_factory=list)
    revisions: list[int] = field(default_factory=list)  # Of the messages.

    @property
    def changes(self) -> list[Change]:
        return [change for each in self.messages if isinstance(each, Events) for change in each.changes]

    @property
    def keys(self) -> list[bytes]:
        return [change.key for change in self.changes]

    @property
    def created(self) -> int:
        """The first revision of the watch."""
        first = self.messages[0]
        assert isinstance(first, Created), first
        return first.next_revision

    @property
    def cancelled(self) -> Cancelled | None:
        last = self.messages[-1]
        return last if isinstance(last, Cancelled) else None

    @property
    def progress(self) -> list[int]:
        return [each.revision for each in self.messages if isinstance(each, Progress)]

    @property
    def cost(self) -> int:
        return sum(each.cost for each in self.messages if isinstance(each, Events))


class Watching:
    """A machine at feature level 2, its hub, and all that the hub has sent."""

    def __init__(self, service_limits: ServiceLimits | None = None, **limits: int) -> None:
        self.fed = Fed(**limits)
        self.fed.do(RaiseFeatureLevel(2))
        self.hub = WatchHub(self, self, "s1", service_limits or ServiceLimits())
        self.full: set[int] = set()  # Connections without room.
        self.seen: defaultdict[tuple[int, int], Seen] = defaultdict(Seen)
        self.given_up: set[int] = set()  # Connections that are closed when anything more is sent to them.
        self.frames = 0
        self._splitters: defaultdict[int, FrameSplitter] = defaultdict(lambda: FrameSplitter(FRAME_BYTES_MAX_CLIENT))

    # The hub calls these.

    @property
    def machine(self) -> KvMachine:
        return self.fed.machine

    @property
    def history(self) -> History:
        return self.machine.history

    @property
    def revision(self) -> int:
        return self.machine.revision

    def has_room(self, connection_id: int) -> bool:
        return connection_id not in self.full

    def send(self, connection_id: int, data: bytes) -> None:
        self.frames += 1
        if connection_id in self.given_up:
            self.hub.gone(connection_id)
            return
        for body in self._splitters[connection_id].feed(data):
            response = decode_response(body)
            assert response.node_id == "s1"
            seen = self.seen[connection_id, response.request_id]
            seen.messages.append(decode_message(response))
            seen.revisions.append(response.revision)

    # A test calls these.

    def do(self, *commands: Command) -> int:
        """Apply commands in one entry; returns the revision."""
        for item in self.fed.feed([encode_command(command) for command in commands]):
            read_result(item)
        return self.machine.revision

    def put(self, *keys: bytes, value: bytes = b"v") -> int:
        return self.do(*[Put(key, value) for key in keys])

    def delete(self, *keys: bytes) -> int:
        return self.do(*[Delete(key) for key in keys])

    def txn(self, *operations: Operation) -> int:
        return self.do(Txn(success=operations))

    def watch(
        self,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        key: bytes | None = None,
        connection_id: int = 1,
        watch_id: int = 1,
        from_revision: int = 0,
        flags: WatchFlag = NO_FLAGS,
        window: int = 1 << 20,
    ) -> Seen:
        if key is not None:
            start, end = key, key + b"\0"
        spec = WatchSpec(start, end, from_revision, flags, window)
        self.hub.watch(connection_id, watch_id, spec)
        return self.seen[connection_id, watch_id]

    def run(self) -> None:
        """Give the hub time until it has nothing to do."""
        for _ in range(10_000):
            if not self.hub.has_work:
                self.hub.check()
                return
            self.hub.step()
        raise AssertionError("the hub never comes to rest")

    def make_room(self, connection_id: int = 1) -> None:
        self.full.discard(connection_id)
        self.hub.note_room(connection_id)

    def install(self, machine: KvMachine) -> None:
        """Take over another machine's state from its snapshot, as a member that was left behind does."""
        picture = machine.snapshot()
        self.machine.restore(cbor2.loads(cbor2.dumps(dict(picture.header))), list(picture.chunks))


def is_refused(watching: Watching, from_revision: int) -> RevisionCompacted | None:
    """The error of a watch from this revision, or None."""
    try:
        watching.watch(from_revision=from_revision, watch_id=999_999)
    except RevisionCompacted as error:
        return error
    watching.hub.unwatch(1, 999_999)
    return None


def revisions_of(changes: Sequence[Change]) -> list[int]:
    return [change.revision for change in changes]

"""The stores of one whole node in memory: a log that is synced on demand, one snapshot, fixed pins, a list of words."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.core_host.disk import Disk, Image
from raft import (
    Configuration,
    Done,
    Entry,
    EntryKind,
    LogPosition,
    SnapshotHeader,
    SnapshotInfo,
    SnapshotWriter,
    StateSnapshot,
    batch_leader_time,
    decode_item,
    encode_item,
)


class HeldDisk(Disk):
    """A `Disk` for a node, which syncs its log itself. `finish_sync` ends a sync that the node has begun."""

    def __init__(self, durable: Image) -> None:
        super().__init__(durable)
        # The present sync: (number of writes, commit hint, callback).
        self._under_way: tuple[int, int, Done] | None = None

    @property
    def is_syncing(self) -> bool:
        """True from `sync` to `finish_sync`."""
        return self._under_way is not None

    def sync(self, commit_hint: int, done: Done) -> None:
        """Begin to sync everything that was appended so far. See raft.LogStore."""
        assert self._under_way is None, "one sync at a time"
        self._under_way = (len(self.unsynced), min(commit_hint, len(self.durable.entries)), done)

    def finish_sync(self) -> None:
        """End the present sync.

        The commit hint of the sync becomes durable too (docs/reference/specification.md#45-hard-state).
        """
        assert self._under_way is not None, "no sync is under way"
        count, hint, done = self._under_way
        self._under_way = None
        hint = max(hint, self.durable.hard_state.commit_index)
        for _ in range(count):
            self.sync_oldest()
        self.durable = replace(self.durable, hard_state=replace(self.durable.hard_state, commit_index=hint))
        done(None)


class FirstSnapshot:
    """A `SnapshotStore` with a single snapshot, which is at index 0 and contains the members.

    The logs here are too short for later snapshots.
    """

    def __init__(self, configuration: Configuration, machine: Mapping[str, Any]) -> None:
        header = SnapshotHeader(index=0, term=0, configuration=configuration, machine=machine)
        self._info = SnapshotInfo(header=header, name="0-0", size_bytes=0)

    def latest(self) -> SnapshotInfo:
        """Return the only snapshot."""
        return self._info

    def chunks(self, info: SnapshotInfo) -> Iterator[bytes]:
        """Return no chunk, because the state at index 0 is empty."""
        assert info == self._info, info
        return iter(())

    def create(self, header: SnapshotHeader) -> SnapshotWriter:
        """Fail, because no log here grows by `snapshot_log_bytes`."""
        raise AssertionError(f"a snapshot in so short a log: {header}")

    def receive(self, total_bytes: int, position: LogPosition | None = None) -> SnapshotWriter:
        """Fail, because no log is cut here, so no member needs a snapshot."""
        raise AssertionError(f"no log was cut, and still a snapshot arrives: {total_bytes}, {position}")

    def read(self, info: SnapshotInfo, offset: int, length: int) -> bytes:
        """Fail, because no member needs a snapshot."""
        raise AssertionError(f"a snapshot is sent: {info}, {offset}, {length}")

    def drop_older(self, keep: Collection[str] = ()) -> None:
        """Do nothing, because there is only one snapshot."""


class FixedPins:
    """A `PinStore` with the pins of all peers from the start, so that no hello is needed."""

    def __init__(self, pins: Mapping[str, bytes]) -> None:
        self._pins = dict(pins)

    def pins(self) -> Mapping[str, bytes]:
        """Return the pins: peer id → incarnation id."""
        return self._pins

    def pin(self, peer_id: str, incarnation_id: bytes, done: Done) -> None:
        """Fail, because no peer has another incarnation here."""
        raise AssertionError(f"a pin for {peer_id}: {incarnation_id!r}, {done}")


class WordList:
    """A state machine that keeps all written words in order.

    The result of a command is the position of its word, from 0.
    """

    def __init__(self) -> None:
        self.words: list[str] = []
        self.entries: list[Entry] = []  # All applied entries.
        self._leader_time = 0

    @property
    def leader_time(self) -> int:
        """The greatest leader time (ns) of the applied entries."""
        return self._leader_time

    @property
    def feature_level(self) -> int:
        """Always 1, because no command here raises the feature level."""
        return 1

    def apply(self, entry: Entry) -> Sequence[int]:
        """Apply one committed entry. Returns the positions of its words."""
        self.entries.append(entry)
        if entry.kind is EntryKind.CONFIGURATION:
            return ()
        self._leader_time = max(self._leader_time, batch_leader_time(entry.payload))
        first = len(self.words)
        self.words += decode_item(entry.payload)[1:]
        return range(first, len(self.words))

    def snapshot(self) -> StateSnapshot:
        """Return the state as it is now, in one chunk."""
        return StateSnapshot(header=self.header(), chunks=iter([self.state_hash()]))

    def header(self) -> dict[str, Any]:
        """Return the header of a snapshot of this state."""
        return {"leader_time": self._leader_time}

    def restore(self, header: Mapping[str, Any], chunks: Iterable[bytes]) -> None:
        """Replace the state by the state in a snapshot."""
        self._leader_time = header["leader_time"]
        self.words = [word for chunk in chunks for word in decode_item(chunk)]
        self.entries = []

    def state_hash(self) -> bytes:
        """Return the encoded words, which are equal if and only if the states are equal."""
        return encode_item(self.words)

"""Small implementations of the engine's ports in memory. A `Disk` holds completions back until a test completes
them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from raft import (
    Configuration,
    Done,
    Entry,
    EntryKind,
    HardState,
    LogPosition,
    LogWrite,
    SnapshotHeader,
    SnapshotInfo,
    SnapshotWriter,
    StateSnapshot,
    batch_leader_time,
    decode_item,
    encode_item,
)


class Disk:
    """The operations that were submitted and are not complete, in order."""

    def __init__(self) -> None:
        self.waiting: list[tuple[str, Callable[[BaseException | None], None]]] = []
        self.names: list[str] = []  # The names of all operations that were submitted until now.

    def submit(self, name: str, done: Callable[[BaseException | None], None]) -> None:
        self.waiting.append((name, done))
        self.names.append(name)

    def complete_one(self, error: BaseException | None = None) -> str:
        name, done = self.waiting.pop(0)
        done(error)
        return name

    def complete_all(self) -> None:
        while self.waiting:
            self.complete_one()


class MemoryLog:
    """A LogStore. The `durable_*` fields contain the state that a crash would leave."""

    def __init__(self, disk: Disk, position: LogPosition = LogPosition(0, 0)) -> None:  # noqa: B008
        self._disk = disk
        self._base = position
        self._entries: list[Entry] = []
        self._syncing = False
        self._appended_anything = False
        self._unproven = False
        self.hard_state = HardState()
        self.durable_hard_state = HardState()
        self.durable_entries: list[Entry] = []
        self.durable_base = position
        self.dropped_before = 0
        self.commit_hints: list[int] = []
        self.is_disk_full = False
        self.lacks_descriptors = ""
        self.has_room = False  # The next search for room returns this value.
        self.searches = 0

    @property
    def first_index(self) -> int:
        return self._base.index + 1

    @property
    def last_index(self) -> int:
        return self._base.index + len(self._entries)

    @property
    def size_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self._entries)

    @property
    def has_unproven_batch(self) -> bool:
        return self._unproven

    def look_for_room(self) -> None:
        self.searches += 1
        self.is_disk_full = not self.has_room

    def term_runs(self) -> Sequence[LogPosition]:
        runs: list[LogPosition] = []
        for entry in self._entries:
            if not runs or runs[-1].term != entry.term:
                runs.append(LogPosition(entry.index, entry.term))
        return runs

    def configuration_indexes(self) -> Sequence[int]:
        return [entry.index for entry in self._entries if entry.kind is EntryKind.CONFIGURATION]

    def append(self, write: LogWrite) -> None:
        self._appended_anything = True
        if write.hard_state is not None:
            self.hard_state = write.hard_state
        if write.reset is not None:
            self._base, self._entries = write.reset, []
        if write.replace_from is not None:
            del self._entries[write.replace_from - self.first_index :]
        for entry in write.entries:
            assert entry.index == self.last_index + 1, (entry.index, self.last_index)
            self._entries.append(entry)

    def sync(self, commit_hint: int, done: Done) -> None:
        assert not self._syncing, "one sync at a time"
        self._syncing, wrote = True, self._appended_anything
        self._appended_anything = False
        self.commit_hints.append(commit_hint)
        image = (list(self._entries), self.hard_state, self._base)

        def synced(error: BaseException | None) -> None:
            self._syncing = False
            if error is None:
                self.durable_entries, self.durable_hard_state, self.durable_base = image
                self._unproven = wrote
            done(error)

        self._disk.submit("sync", synced)

    def read(self, first_index: int, last_index: int, bytes_max: int) -> list[Entry]:
        assert self.first_index <= first_index <= last_index <= self.last_index
        entries: list[Entry] = []
        for index in range(first_index, last_index + 1):
            entry = self._entries[index - self.first_index]
            bytes_max -= entry.size_bytes
            if entries and bytes_max < 0:
                break
            entries.append(entry)
        return entries

    def drop_before(self, index: int) -> None:
        count = index - self.first_index
        if count > 0:
            self._base = LogPosition(index - 1, self._entries[count - 1].term)
            del self._entries[:count]
        self.dropped_before = max(self.dropped_before, index)

    def after_a_crash(self, disk: Disk) -> MemoryLog:
        """The log as the member finds it after a crash."""
        log = MemoryLog(disk, self.durable_base)
        log._entries = list(self.durable_entries)
        log.hard_state = log.durable_hard_state = self.durable_hard_state
        log.durable_entries = list(self.durable_entries)
        return log


class MemorySnapshots:
    """A SnapshotStore. A file is `[index, term, configuration, machine header, chunks]`."""

    def __init__(self, disk: Disk, configuration: Configuration, machine_header: Mapping[str, Any]) -> None:
        self._disk = disk
        header = SnapshotHeader(index=0, term=0, configuration=configuration, machine=machine_header)
        self._files: list[tuple[SnapshotInfo, bytes]] = []
        self.add(header, [])
        self.abandoned = 0
        self.dropped = 0

    def add(self, header: SnapshotHeader, chunks: list[bytes]) -> SnapshotInfo:
        file = encode_item(
            [header.index, header.term, header.configuration.encode(), dict(header.machine), list(chunks)]
        )
        info = SnapshotInfo(header=header, name=f"{header.index}-{header.term}", size_bytes=len(file))
        self._files.append((info, file))
        return info

    def latest(self) -> SnapshotInfo:
        return max(self._files, key=lambda file: file[0].header.index)[0]

    def create(self, header: SnapshotHeader) -> SnapshotWriter:
        return _OwnWriter(self, self._disk, header)

    def receive(self, total_bytes: int, position: LogPosition | None = None) -> SnapshotWriter:
        return _TransferWriter(self, self._disk, total_bytes, position)

    def read(self, info: SnapshotInfo, offset: int, length: int) -> bytes:
        return self._file(info)[offset : offset + length]

    def chunks(self, info: SnapshotInfo) -> Iterator[bytes]:
        yield from decode_item(self._file(info))[4]

    def drop_older(self, keep: Collection[str] = ()) -> None:
        self.dropped += 1
        latest = self.latest()
        self._files = [file for file in self._files if file[0] == latest or file[0].name in keep]

    def _file(self, info: SnapshotInfo) -> bytes:
        return next(file for known, file in self._files if known == info)


class _Writer:
    def __init__(self, store: MemorySnapshots, disk: Disk) -> None:
        self._store, self._disk = store, disk
        self._chunks: list[bytes] = []
        self._busy = False

    def write(self, chunk: bytes, done: Done) -> None:
        assert not self._busy, "one operation at a time"
        self._busy = True

        def written(error: BaseException | None) -> None:
            self._busy = False
            if error is None:
                self._chunks.append(chunk)
            done(error)

        self._disk.submit("snapshot write", written)

    def finish(self, done: Callable[[SnapshotInfo | BaseException], None]) -> None:
        assert not self._busy, "one operation at a time"
        self._disk.submit("snapshot sync", lambda error: done(error if error is not None else self._complete()))

    def abandon(self) -> None:
        self._store.abandoned += 1

    def _complete(self) -> SnapshotInfo | BaseException:
        raise AssertionError("one of the two kinds")


class _OwnWriter(_Writer):
    def __init__(self, store: MemorySnapshots, disk: Disk, header: SnapshotHeader) -> None:
        super().__init__(store, disk)
        self._header = header

    def _complete(self) -> SnapshotInfo | BaseException:
        return self._store.add(self._header, self._chunks)


class _TransferWriter(_Writer):
    def __init__(self, store: MemorySnapshots, disk: Disk, total_bytes: int, position: LogPosition | None) -> None:
        super().__init__(store, disk)
        self._total_bytes, self._position = total_bytes, position

    def _complete(self) -> SnapshotInfo | BaseException:
        file = b"".join(self._chunks)
        assert len(file) == self._total_bytes
        try:
            index, term, configuration, machine, chunks = decode_item(file)
            members = Configuration.decode(configuration)
        except Exception as error:
            return ValueError(f"a damaged snapshot: {error}")
        if self._position not in (None, LogPosition(index, term)):
            return ValueError(f"it is at ({index}, {term}), but {self._position} was announced")
        header = SnapshotHeader(index=index, term=term, configuration=members, machine=machine)
        return self._store.add(header, chunks)


class MemoryPins:
    """A PinStore."""

    def __init__(self, disk: Disk, pins: Mapping[str, bytes] | None = None) -> None:
        self._disk = disk
        self._pins = dict(pins or {})

    def pins(self) -> Mapping[str, bytes]:
        return self._pins

    def pin(self, peer_id: str, incarnation_id: bytes, done: Done) -> None:
        def pinned(error: BaseException | None) -> None:
            if error is None:
                self._pins[peer_id] = incarnation_id
            done(error)

        self._disk.submit(f"pin {peer_id}", pinned)


class ListMachine:
    """A state machine that keeps a list of all commands. The result of a command is its position in the list."""

    CHUNK_ITEMS = 2

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._leader_time = 0
        self.level = 1

    @property
    def leader_time(self) -> int:
        return self._leader_time

    @property
    def feature_level(self) -> int:
        return self.level

    def apply(self, entry: Entry) -> Sequence[Any]:
        if entry.kind is EntryKind.CONFIGURATION:
            return []
        self._leader_time = max(self._leader_time, batch_leader_time(entry.payload))
        commands = decode_item(entry.payload)[1:]
        start = len(self.items)
        self.items += commands
        return range(start, len(self.items))

    def snapshot(self) -> StateSnapshot:
        items = list(self.items)
        step = self.CHUNK_ITEMS
        chunks = (encode_item(items[place : place + step]) for place in range(0, len(items), step))
        return StateSnapshot(header=self.header(), chunks=chunks)

    def header(self) -> dict[str, Any]:
        return {"leader_time": self._leader_time}

    def restore(self, header: Mapping[str, Any], chunks: Iterable[bytes]) -> None:
        self._leader_time = header["leader_time"]
        self.items = [item for chunk in chunks for item in decode_item(chunk)]

    def begin_restore(self, header: Mapping[str, Any], chunks: Iterable[bytes]) -> ListRestore:
        return ListRestore(self, header, chunks)

    def state_hash(self) -> bytes:
        return encode_item(self.items)


class ListRestore:
    """A StateRestore that reads one chunk per step, and cleans up in one more step."""

    def __init__(self, machine: ListMachine, header: Mapping[str, Any], chunks: Iterable[bytes]) -> None:
        self._machine, self._header, self._chunks = machine, header, iter(chunks)
        self._items: list[Any] = []
        self.is_restored = self.is_given_up = False

    def step(self) -> bool:
        if self.is_restored:
            return False
        chunk = next(self._chunks, None)
        if chunk is None:
            self._machine.items, self._machine._leader_time = self._items, self._header["leader_time"]
            self.is_restored = True
        else:
            self._items += decode_item(chunk)
        return True

    def give_up(self) -> None:
        self.is_restored = self.is_given_up = True

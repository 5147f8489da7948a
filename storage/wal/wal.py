"""The write-ahead log of one node. Log writes wait in memory, and each sync writes all waiting log writes as one frame.

See docs/reference/specification.md#4-write-ahead-log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from raft import ENTRY_OVERHEAD_BYTES, Compacted, Done, Entry, EntryKind, HardState, Identity, LogPosition, LogWrite
from storage.ballast import Ballast
from storage.errors import LogFailed, is_disk_full, is_short_of_descriptors, is_shortage
from storage.files.interface import Delete, Files, Operation, SetSize, SyncFile, SyncFolder, Write
from storage.limits import MIB, StorageLimits
from storage.wal.frame import ENTRY, FRAME_EXTRA_BYTES_MAX, EncodedFrame
from storage.wal.frame_reading import read_frame_range
from storage.wal.index import FrameLocation, FrameRange
from storage.wal.newest_segment_note import NewestSegmentNote
from storage.wal.recovery import Recovered, SegmentInfo
from storage.wal.segment import HEADER_BYTES, SegmentHeader, new_segment_operations, segment_name
from storage.wal.write_group import PendingWrites

_CONFIGURATION = EntryKind.CONFIGURATION  # This alias saves an attribute lookup per entry.

RandomBytes = Callable[[int], bytes]

PREALLOCATE_SHARE = 8
"""Zeroes are written only after frames of at most `preallocate_bytes` / PREALLOCATE_SHARE. Larger frames would use up
the zeroes too soon."""

READ_AHEAD_BYTES_MAX = MIB  # The maximum number of bytes that one disk read fetches.


class _Plan(NamedTuple):
    """The operations that write one group to disk, and values that change when these operations are done."""

    operations: list[Operation]
    frames: list[EncodedFrame]
    segment: int
    salt: int
    offset: int  # The offset of the first frame.
    file_bytes: int  # The size of the segment after the write, including zeroes.
    has_zeroes: bool


class Wal:
    """The log of one node. The whole log is durable when `open_storage` returns it. Implements `raft.LogStore`.

    Entries that are not yet synced are read from memory. All other entries are read from disk and verified.
    """

    def __init__(
        self,
        files: Files,
        folder: str,
        *,
        identity: Identity,
        limits: StorageLimits,
        random_bytes: RandomBytes,
        ballast: Ballast,
        recovered: Recovered,
    ) -> None:
        self._files, self._folder = files, folder
        self._identity, self._limits = identity, limits
        self._random_bytes, self._ballast = random_bytes, ballast
        self.is_disk_full = False
        """True while the ballast is released, so that only votes and compaction should be written. `is_disk_full` is
        also True while an operation waits for a file descriptor; then `lacks_descriptors` is not empty."""
        ballast.on_shortage = self._note_shortage
        self._state = recovered.state
        self._index = recovered.index
        self._segments: list[SegmentInfo] = recovered.segments
        self._salt = 0  # The salt of the last segment; 0 until this object has written one.
        self._file_bytes = 0  # The size of the last segment's file. All bytes after the frames are zero.
        self._may_preallocate = True  # False once the disk has had no room for zeroes.
        self._durable_batch, self._durable_checksum = recovered.proven_batch, recovered.proven_checksum
        self._content_batch = recovered.proven_batch  # The batch number of the last frame that was not empty.
        self.has_unproven_batch = False
        """True if a recovery now could not prove that the last frame was synced. An idle node then syncs once more."""
        self._next_batch = recovered.last_batch + 1
        self._disk_end = recovered.state.end
        self._disk_hard_state = recovered.state.hard_state
        self._pending = PendingWrites(recovered.state.last_index + 1)
        self._flight: PendingWrites | None = None
        self._failure: BaseException | None = None
        self._segment_note = NewestSegmentNote(files, folder)
        self._segments_to_delete: list[str] = []  # Paths of deleted segments whose deletion is not durable yet.
        self._is_deleting = False
        # The last frame that was read from disk. A slow peer often needs more entries of the same frame.
        self._cached: tuple[FrameLocation, list[Entry]] | None = None

    @property
    def first_index(self) -> int:
        """The index of the oldest entry that can be read; `last_index + 1` if there is none."""
        return self._state.first_index

    @property
    def last_index(self) -> int:
        """The index of the last entry, including entries that are appended but not synced."""
        return self._state.last_index

    @property
    def hard_state(self) -> HardState:
        """The hard state that was appended last. Right after opening the log, this state is durable."""
        return self._state.hard_state

    @property
    def lacks_descriptors(self) -> str:
        """The system's message while the log waits for a file descriptor; otherwise empty."""
        return self._ballast.lacks_descriptors

    @property
    def size_bytes(self) -> int:
        """The size of all segments, without preallocated zeroes."""
        return sum([segment.size_bytes for segment in self._segments])

    def term_runs(self) -> Sequence[LogPosition]:
        """The first position of each run of equal terms, in order."""
        return tuple(self._state.runs)

    def configuration_indexes(self) -> Sequence[int]:
        """The indexes of the entries of kind `configuration`, in order."""
        return tuple(self._state.configuration_indexes)

    def continues(self, snapshot: LogPosition) -> bool:
        """True if the log has an entry at the position `snapshot`, or begins right after it.

        The index of `snapshot` must not be below `first_index - 1`.

        See docs/reference/specification.md#55-choice-at-start.
        """
        assert snapshot.index >= self.first_index - 1, (snapshot, self.first_index)
        if snapshot.index > self.last_index:
            return False
        term = self._state.term_at(snapshot.index)
        return term == snapshot.term or (term == 0 and snapshot.index == self._state.start.index)

    def append(self, write: LogWrite) -> None:
        """Add one write of the write stream, in memory. Raises LogFailed after a failed sync."""
        if self._failure is not None:
            raise LogFailed(str(self._failure))
        problem = self.take(write)
        assert problem is None, (problem, write)

    def take(self, write: LogWrite) -> str | None:
        """Append one write. If the write is impossible, return the reason. A damaged file may contain such a write."""
        hard_state = write.hard_state
        if hard_state is not None:  # Keep the old hint. `sync` sets a new hint, because it knows the durable index.
            hard_state = replace(hard_state, commit_index=self._state.hard_state.commit_index)
        entries = write.entries
        first_index = entries[0].index if entries else 0
        if len(entries) > 1 and any(entry.index != first_index + place for place, entry in enumerate(entries)):
            return "the entries are not in index order"
        terms = (entries[0].term,) if len(entries) == 1 else [entry.term for entry in entries]
        problem = self._state.apply(hard_state, write.reset, write.replace_from, first_index, terms)
        if problem is None:
            for entry in entries:
                if entry.kind is _CONFIGURATION:
                    self._state.configuration_indexes.append(entry.index)
            self._pending.take(write)
        return problem

    def sync(self, commit_hint: int, done: Done) -> None:
        """Make everything appended so far durable. If nothing was appended, write an empty frame, which proves that the
        last frame was synced.

        If the disk is full, the ballast is released and the gathered writes go to a new segment. Bytes after the last
        synced frame of the old segment are then ignored. If there is still no room, the writes wait for
        `look_for_room`. Any other error is final. Raises LogFailed after an earlier final error.

        See docs/reference/specification.md#49-proof-of-the-last-frame.
        """
        if self._failure is not None:
            raise LogFailed(str(self._failure))
        size_bytes = self._segments[-1].size_bytes + self._pending.size_bytes + FRAME_EXTRA_BYTES_MAX
        self._start(commit_hint, done, to_new_segment=size_bytes > self._limits.segment_bytes_max)

    def sync_to_new_segment(self, commit_hint: int, and_then: Sequence[Operation], done: Done) -> None:
        """Sync to a new segment, at the end of recovery. The operations `and_then` are carried out after the new
        segment has become durable."""
        self._start(commit_hint, done, to_new_segment=True, and_then=and_then)

    def read(self, first_index: int, last_index: int, bytes_max: int) -> list[Entry]:
        """Read entries from `first_index` on, up to `last_index`. At least one entry is read, and as many more as fit
        into `bytes_max` by their `size_bytes`.

        Raises Compacted, CorruptLog, OSError.
        """
        if first_index < self.first_index:
            raise Compacted(first_index, self.first_index)
        assert first_index <= last_index <= self.last_index, (first_index, last_index, self.last_index)
        entries: list[Entry] = []
        size_bytes = 0
        while first_index <= last_index:
            run = self._run_from(first_index, last_index, bytes_max - size_bytes)
            run_bytes = ENTRY_OVERHEAD_BYTES * len(run) + sum([len(entry.payload) for entry in run])
            if size_bytes + run_bytes > bytes_max:
                return entries + run[: _how_many_fit(run, bytes_max - size_bytes, 0 if entries else 1)]
            size_bytes += run_bytes
            entries += run
            first_index = entries[-1].index + 1
        return entries

    def look_for_room(self) -> None:
        """Try the waiting writes again. If no write waits, try to make the ballast again.

        After a shortage of room, `is_disk_full` stays True until the ballast is made. Raises OSError if a limit on file
        sizes forbade the ballast at the last attempt. In this case waiting for room would not help.
        """
        if self._failure is None:
            self._ballast.look_for_room()

    def drop_before(self, index: int) -> None:
        """Delete the oldest segments that have no entry in force from `index` on. The last segment always stays.

        The hard state is not lost with the deleted segments, because the first frame of each segment contains it.
        """
        if self._failure is not None or self._pending.reset or (self._flight and self._flight.reset):
            return  # A reset is being written. The caller will call this method again after the reset.
        count = 0
        while count < len(self._segments) - 1:
            if self._index.last_index_in(self._segments[count].number, self._disk_end.index) >= index:
                break
            count += 1
        if count == 0:
            return
        self._segments_to_delete += [self._path(segment.number) for segment in self._segments[:count]]
        first_index = self._index.drop_through(self._segments[count - 1].number)
        del self._segments[:count]
        self._state.drop_before(self._disk_end.index + 1 if first_index is None else first_index)
        self._delete_segments()

    def _run_from(self, first_index: int, last_index: int, bytes_max: int) -> list[Entry]:
        """Some entries from `first_index` on, from memory or disk. There is at least one entry, and no entry above
        `last_index`.

        The caller wants `bytes_max` bytes of entries. This method reads only the frames that are needed for this number
        of bytes.
        """
        limit = last_index + 1
        for group in (self._pending, self._flight):
            if group is not None:
                if first_index >= group.from_index:
                    return group.entries[first_index - group.from_index : limit - group.from_index]
                limit = min(limit, group.from_index)
        place, end_index = self._index.find(first_index)
        if self._cached is None or self._cached[0] != place:
            return self._load(first_index, limit, bytes_max)
        limit = limit if end_index is None else min(limit, end_index)
        return self._cached[1][first_index - place.first_index : limit - place.first_index]

    def _load(self, first_index: int, limit: int, bytes_max: int) -> list[Entry]:
        """Entries from `first_index` on and below `limit`. These are the entries of all needed frames that one disk
        read can fetch.

        A frame is needed only if the frames before it have less than `bytes_max` of entries. No other frame is read, so
        that damage is reported only when the caller wants the damaged entries. Entries of a needed frame that were cut
        from the log are read, but not returned.
        """
        frames = self._index.range_from(first_index, limit, min(READ_AHEAD_BYTES_MAX, bytes_max))
        if frames.ends[-1] - frames.first_indexes[0] > len(frames.offsets):
            # At least one frame has several entries, so fewer frames may be enough. If each frame had only one entry,
            # all these frames would be needed, because such a frame is larger than the size that is counted for its
            # entry.
            frames = frames.first(_needed_frames(frames, bytes_max))
        found, last = read_frame_range(self._files, self._path(frames.segment), frames, self._state, first_index)
        place = FrameLocation(frames.segment, frames.offsets[-1], frames.lengths[-1], frames.first_indexes[-1])
        self._cached = (place, last)
        return found

    def _start(self, commit_hint: int, done: Done, *, to_new_segment: bool, and_then: Sequence[Operation] = ()) -> None:
        assert self._flight is None, "one sync at a time"
        group = self._flight = self._pending
        self._pending = PendingWrites(self._state.last_index + 1)
        durable_index = min(self._disk_end.index, group.from_index - 1)
        state = self._state.hard_state
        hint = max(state.commit_index, min(commit_hint, durable_index))
        hard_state = HardState(state.term, state.voted_for, min(hint, self._state.last_index))
        self._state.hard_state, end = hard_state, self._state.end
        plan = self._plan(group, hard_state, to_new_segment)
        operations = plan.operations

        def retry_in_new_segment() -> list[Operation]:
            nonlocal plan
            plan = self._plan(group, hard_state, to_new_segment=True)
            return [*plan.operations, *and_then]

        def finished(error: BaseException | None) -> None:
            if error is None:
                self._written(plan, group, hard_state, end)
            else:
                self._failure = error
            done(error)

        def tried(error: BaseException | None) -> None:
            if error is None:
                finished(None)
            else:
                self._ballast.rescue(operations, error, finished, retry_in_new_segment)

        def after_preallocation(error: BaseException | None) -> None:
            """If the disk has no room for the zeroes, stop preallocating, and cut the written zeroes off. The ballast
            is released only if there is still no room."""
            if is_disk_full(error):
                self._may_preallocate = False
                last = self._segments[-1]
                cut = SetSize(self._path(last.number), last.size_bytes)
                self._ballast.submit([cut, *retry_in_new_segment()], finished, retry_in_new_segment)
            elif is_short_of_descriptors(error):
                # The file could not be opened, so nothing was written.
                self._ballast.submit(retry_in_new_segment(), finished, retry_in_new_segment)
            else:
                finished(error)

        if plan.has_zeroes:
            self._files.submit(plan.operations, after_preallocation)
        elif self.is_disk_full or and_then:
            self._ballast.submit([*plan.operations, *and_then], finished, retry_in_new_segment)
        else:
            self._files.submit(plan.operations, tried)

    def _plan(self, group: PendingWrites, hard_state: HardState, to_new_segment: bool) -> _Plan:
        salt = self._draw_salt() if to_new_segment else self._salt
        assert salt > 0, "recovery begins with a new segment"
        frames = group.encode(
            salt=salt,
            batch=self._next_batch,
            durable_batch=self._durable_batch,
            previous_checksum=self._durable_checksum,
            start=self._disk_end if to_new_segment else None,
            hard_state=hard_state if to_new_segment or hard_state != self._disk_hard_state else None,
            frame_bytes_max=self._limits.frame_bytes_max,
        )
        last = self._segments[-1]
        if not to_new_segment:
            return self._append(last, frames, salt)
        header = SegmentHeader(
            group_id=self._identity.group_id,
            cluster_id=self._identity.cluster_id,
            number=last.number + 1,
            salt=salt,
            previous_batch=self._durable_batch,
            previous_checksum=self._durable_checksum,
        )
        return _Plan(
            operations=new_segment_operations(self._folder, header, frames),
            frames=frames,
            segment=header.number,
            salt=salt,
            offset=HEADER_BYTES,
            file_bytes=HEADER_BYTES + sum([frame.length for frame in frames]),
            has_zeroes=False,
        )

    def _append(self, last: SegmentInfo, frames: list[EncodedFrame], salt: int) -> _Plan:
        """Append frames to the last segment, and new zeroes after them if the preallocated zeroes are used up.

        A write into blocks that the file already has changes no metadata, so its sync need not wait for the file
        system's journal. With three members on one disk, this makes a sync faster by an eighth to a third. Zeroes are
        never a valid frame, so the log ends where they begin.
        """
        if len(frames) == 1:
            frames_bytes, buffers = frames[0].length, frames[0].buffers
        else:
            frames_bytes = sum([frame.length for frame in frames])
            buffers = tuple(buffer for each in frames for buffer in each.buffers)
        end, file_bytes = last.size_bytes + frames_bytes, self._file_bytes
        if end > file_bytes:
            file_bytes = end
            zero_bytes = min(self._limits.preallocate_bytes, self._limits.segment_bytes_max - end)
            if (
                self._may_preallocate
                and zero_bytes >= PREALLOCATE_SHARE * frames_bytes
                and not self._ballast.is_released
            ):
                buffers += (bytes(zero_bytes),)
                file_bytes += zero_bytes
        path = self._path(last.number)
        return _Plan(
            operations=[Write(path, last.size_bytes, buffers), SyncFile(path)],
            frames=frames,
            segment=last.number,
            salt=salt,
            offset=last.size_bytes,
            file_bytes=file_bytes,
            has_zeroes=file_bytes > end and file_bytes > self._file_bytes,
        )

    def _written(self, plan: _Plan, group: PendingWrites, hard_state: HardState, end: LogPosition) -> None:
        """Note that the group is durable. From now on the entries of the group are read from disk."""
        self._flight = None
        is_new = plan.segment != self._segments[-1].number
        if is_new:
            self._segments.append(SegmentInfo(plan.segment, HEADER_BYTES))
            self._segment_note.write(plan.segment)
        if group.reset is not None:
            self._index.clear()
        elif group.replace_from is not None:
            self._index.truncate(group.replace_from)
        offset = plan.offset
        for frame in plan.frames:
            if frame.last_index >= frame.first_index:
                self._index.add(frame.first_index, plan.segment, offset, frame.length)
            offset += frame.length
        self._segments[-1].size_bytes = offset
        self._salt, self._file_bytes = plan.salt, plan.file_bytes
        # The highest batch that a recovery could prove if it ran now.
        proven_batch = plan.frames[0].batch if is_new else self._durable_batch
        self._durable_batch, self._durable_checksum = plan.frames[-1].batch, plan.frames[-1].checksum
        self._next_batch = self._durable_batch + 1
        if not group.is_empty:
            self._content_batch = self._durable_batch
        self.has_unproven_batch = self._content_batch > proven_batch
        self._disk_hard_state, self._disk_end = hard_state, end

    def _delete_segments(self) -> None:
        """Delete segments, the oldest first. Each deletion is made durable before the next one begins, so that a crash
        never leaves a gap in the numbers.

        If the sync of a deletion fails, the log takes no more writes, and the node stops at its next write. Otherwise,
        a later sync of the folder might succeed without making this deletion durable, and the next deletion could leave
        a gap.

        One segment is deleted at a time, so that a sync of the log waits for at most one deletion.
        """
        if self._is_deleting or not self._segments_to_delete:
            return
        self._is_deleting = True

        def deleted(error: BaseException | None) -> None:
            if error is None:
                self._files.submit([SyncFolder(self._folder)], synced)
            else:
                self._is_deleting = False  # The next deletion, or the next start of the member, tries again.

        def synced(error: BaseException | None) -> None:
            self._is_deleting = False
            if error is None:
                del self._segments_to_delete[0]
                self._delete_segments()
            elif not is_shortage(error):
                self._failure = self._failure or error

        self._files.submit([Delete(self._segments_to_delete[0])], deleted)

    def _note_shortage(self, is_short: bool) -> None:
        self.is_disk_full = is_short

    def _draw_salt(self) -> int:
        return int.from_bytes(self._random_bytes(8), "big") or 1

    def _path(self, segment: int) -> str:
        return f"{self._folder}/{segment_name(segment)}"


def _how_many_fit(run: Sequence[Entry], bytes_max: int, at_least: int) -> int:
    """The number of entries from the beginning of `run` that fit into `bytes_max`. The result is never below
    `at_least`."""
    sizes = accumulate([entry.size_bytes for entry in run])
    return max(at_least, sum(size_bytes <= bytes_max for size_bytes in sizes))


def _needed_frames(frames: FrameRange, bytes_max: int) -> int:
    """The number of these frames that are needed to get `bytes_max` bytes of entries. The size of an entry is its
    payload plus ENTRY_OVERHEAD_BYTES, which is more than the entry takes in a frame.
    """
    for number, length in enumerate(frames.lengths):
        bytes_max -= length + (ENTRY_OVERHEAD_BYTES - ENTRY.size) * (frames.ends[number] - frames.first_indexes[number])
        if bytes_max <= 0:
            return number + 1
    return len(frames.lengths)

"""Rotted or forged files of a data folder and backups. A reader either returns the written content or refuses the file
and names it.

Each surface is fuzzed in two ways. In the first way, bytes are changed as a disk may change them. A file that can still
be opened must then have the written content. In the second way, content is changed and its checksums are corrected, as
only a program can do. In this case the result cannot be compared with the written content, but it must be a state or a
documented refusal.
"""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path
from random import Random

import cbor2
import google_crc32c

from kvstore.backup.file import BackupFailed
from kvstore.member.restore import read_initial_state
from kvstore.protocol.commands import Delete, Put
from raft import Entry, LogPosition, Member, SnapshotHeader
from storage import CorruptLog, CorruptMeta, CorruptSnapshot, NewerFormat, SnapshotFolder, StorageLimits, Wal
from storage.ballast import Ballast
from storage.folder.metadata import (
    META_MAGIC,
    PINS_MAGIC,
    PinFile,
    encode_meta,
    encode_pins,
    read_identity,
    read_joins_as,
)
from storage.snapshots.format import PREAMBLE, encode_chunk, encode_header, encode_trailer
from storage.wal.recovery import Recovered, recover_log
from storage.wal.segment import HEADER_BYTES
from tests.fuzz.campaign import RecordProperty, campaign, sizes
from tests.fuzz.structures import Structures
from tests.kvstore.support.machine_fixture import Fed
from tests.storage.support.builders import (
    CONFIGURATION,
    IDENTITY,
    LOG,
    SNAPSHOTS,
    built,
    entries,
    entry,
    frames,
    new_folder,
    opened,
    segments,
    snapshot_header,
    synced,
    write,
)
from tests.storage.support.power_loss_files import PowerLossFiles

LIMITS = StorageLimits(segment_bytes_max=700, ballast_bytes=0)
MANY = 1 << 40
U32, U64 = struct.Struct(">I"), struct.Struct(">Q")
Said = tuple[int, int, tuple[LogPosition, ...], int, str | None]
"""The content that a log reports: its first and last index, its terms as runs, term and vote."""


def names(said: str, path: str) -> None:
    """Assert that the text of a refusal begins with the path of the refused file."""
    assert said.startswith(path), (said, path)
    assert said


class WrittenLog:
    """A log of some segments, with the content that it reported after each frame. The methods change the folder of the
    log and restore it."""

    def __init__(self, random: Random, *, is_proven: bool) -> None:
        self.files = new_folder(random.randrange(1_000))
        self.log = opened(self.files, LIMITS).log
        self.said: list[Said] = [said_by(self.log)]
        self._sync(write(*entries(1, 3), term=1, voted_for="n1"))
        for index in range(4, 10):
            self._sync(write(entry(index, payload=random.randbytes(random.randrange(60)))))
        self._sync(write(term=2, voted_for=None))
        self._sync(write(*entries(8, 12, term=2), replace_from=8))
        for index in range(13, 22):
            self._sync(write(entry(index, 2, random.randbytes(random.randrange(60)))))
        if is_proven:
            self._sync()
        self.paths = segments(self.files)
        self.entries = {each.index: each for each in self.log.read(1, 21, MANY)}
        self.content = {path: bytes(self.files.edit(path)) for path in self.paths}
        self.frames = {path: frames(self.files, path) for path in self.paths}
        assert len(self.paths) > 3

    def _sync(self, *writes: object) -> None:
        synced(self.files, self.log, *writes)  # type: ignore[arg-type]
        self.said.append(said_by(self.log))

    def put(self, path: str, data: bytes) -> None:
        self.files.edit(path)[:] = data

    def put_back(self) -> None:
        for path, data in self.content.items():
            self.put(path, data)

    def allows(self, path: str, data: bytes, said: Said) -> bool:
        """True if a log that reports `said` may be opened although its segment `path` contains `data`.

        Only the last segment may have lost frames. The lost frames must be at its end, and no later frame may prove
        that they were synced.
        """
        if said == self.said[-1]:
            return True
        was, starts = self.content[path], [frame.offset for frame in self.frames[path]]
        first = next((at for at, (old, new) in enumerate(zip(was, data, strict=False)) if old != new), len(data))
        reaches_end = len(data) != len(was) or was[starts[-1] :] != data[starts[-1] :]
        whole = sum(start <= first for start in starts) - 1  # The number of whole frames before the first change.
        since = self.said[len(self.said) - len(starts) + whole - 1 :]
        return path == self.paths[-1] and reaches_end and whole > 0 and said in since


def said_by(log: Wal) -> Said:
    state = log.hard_state
    return log.first_index, log.last_index, tuple(log.term_runs()), state.term, state.voted_for


def reopened(files: PowerLossFiles) -> Wal:
    """Open the log as a member does at its start, but without writing anything. Raises StorageError."""
    recovered: Recovered = recover_log(files, LOG, IDENTITY)
    log = Wal(
        files, LOG, identity=IDENTITY, limits=LIMITS, random_bytes=Random(1).randbytes, ballast=Ballast(files, 0),
        recovered=recovered,
    )  # fmt: skip
    for unproven in recovered.unproven:
        problem = log.take(unproven)
        if problem is not None:
            raise CorruptLog(segments(files)[-1], 0, problem)
    return log


def all_read(log: Wal) -> list[Entry]:
    return log.read(log.first_index, log.last_index, MANY) if log.last_index >= log.first_index else []


@sizes
def test_a_log_whose_bytes_changed_opens_as_it_was_or_is_refused_by_the_name_of_a_segment(
    inputs: int, record_property: RecordProperty
) -> None:
    outcomes: Counter[str] = Counter()
    with campaign(record_property, surface="segments of a log, bytes", seed=40, inputs=inputs) as random:
        structures = Structures(random)
        logs = [WrittenLog(random, is_proven=number % 2 > 0) for number in range(4)]
        for number in range(inputs):
            written = random.choice(logs)
            path = random.choice((*written.paths, written.paths[-1]))
            data = structures.changed_bytes(written.content[path])
            written.put(path, data)
            try:
                log = reopened(written.files)
                assert written.allows(path, data, said_by(log)), (number, path, said_by(log))
                assert all(written.entries.get(each.index) == each for each in all_read(log))
                outcomes["opened"] += 1
            except (CorruptLog, NewerFormat) as error:
                names(error.path, f"{LOG}/")
                outcomes["refused"] += 1
            except Exception as error:
                raise AssertionError(f"input {number}: {type(error).__name__}: {error}") from error
            written.put(path, written.content[path])
    assert min(outcomes["opened"], outcomes["refused"]) > inputs // 50, outcomes


@sizes
def test_a_log_of_sound_frames_with_any_content_opens_or_is_refused(
    inputs: int, record_property: RecordProperty
) -> None:
    outcomes: Counter[str] = Counter()
    with campaign(record_property, surface="segments of a log, content", seed=41, inputs=inputs) as random:
        logs = [WrittenLog(random, is_proven=number % 2 > 0) for number in range(4)]
        for number in range(inputs):
            written = random.choice(logs)
            with_changed_frame(written, random)
            try:
                log = reopened(written.files)
                outcomes["opened"] += 1
                all_read(log)
                outcomes["read"] += 1
            except (CorruptLog, NewerFormat) as error:
                names(error.path, f"{LOG}/")
                outcomes["refused"] += 1
            except Exception as error:
                raise AssertionError(f"input {number}: {type(error).__name__}: {error}") from error
            written.put_back()
    assert min(outcomes["read"], outcomes["refused"]) > inputs // 50, outcomes


def with_changed_frame(written: WrittenLog, random: Random) -> None:
    """Change fields of a frame or of a header, and correct all checksums. Later frames repeat the checksum of the frame
    before them, and this chain of checksums is mostly corrected, too."""
    place = random.randrange(len(written.paths))
    path = written.paths[place]
    data = bytearray(written.content[path])
    frame = random.choice(written.frames[path])
    for _ in range(random.choice((1, 1, 2))):
        if random.random() < 0.1:
            start, end = 8, HEADER_BYTES - 4
        else:
            start, end = frame.offset + random.choice((0, 12)), min(frame.payloads_offset + 8, frame.end_offset - 4)
        width = random.choice((1, 4, 8))
        at = random.randrange(start, end - width)
        near = int.from_bytes(data[at : at + width], "big") + random.choice((-2, -1, 1, 2))
        value = random.choice((0, 1, 2, 21, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, near, near, near))
        data[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, "big")
    data[HEADER_BYTES - 4 : HEADER_BYTES] = U32.pack(google_crc32c.value(bytes(data[: HEADER_BYTES - 4])))
    keeps_chain = random.random() < 0.8
    checksum = None
    for each in written.frames[path]:
        if each.offset >= frame.offset:
            if checksum is not None and keeps_chain:
                data[each.offset + 12 : each.offset + 16] = U32.pack(checksum)
            checksum = google_crc32c.value(bytes(data[each.offset : each.end_offset - 4]))
            data[each.end_offset - 4 : each.end_offset] = U32.pack(checksum)
    written.put(path, bytes(data))
    for later in written.paths[place + 1 :]:
        if not keeps_chain or checksum is None:
            break
        data = bytearray(written.content[later])
        data[56:60] = U32.pack(checksum)
        data[60:64] = U32.pack(google_crc32c.value(bytes(data[:60])))
        for each in written.frames[later]:
            data[each.offset + 12 : each.offset + 16] = U32.pack(checksum)
            checksum = google_crc32c.value(bytes(data[each.offset : each.end_offset - 4]))
            data[each.end_offset - 4 : each.end_offset] = U32.pack(checksum)
        written.put(later, bytes(data))


@sizes
def test_a_log_that_changed_in_use_is_read_as_it_was_written_or_refused(
    inputs: int, record_property: RecordProperty
) -> None:
    """While the member runs, bytes change, or a valid frame is written over another frame."""
    outcomes: Counter[str] = Counter()
    with campaign(record_property, surface="frames read back", seed=42, inputs=inputs) as random:
        structures = Structures(random)
        logs = [WrittenLog(random, is_proven=True) for _ in range(4)]
        for number in range(inputs):
            written = random.choice(logs)
            path = random.choice(written.paths)
            if random.random() < 0.5:
                data = structures.changed_bytes(written.content[path])
            else:
                data = with_misplaced_frame(written, path, random)
            written.put(path, data)
            written.log._cached = None
            first = random.randrange(1, 22)
            last = random.randrange(first, 22)
            try:
                found = written.log.read(first, last, random.choice((1, 100, MANY)))
                assert found == [written.entries[index] for index in range(first, first + len(found))], number
                assert found
                outcomes["read"] += 1
            except CorruptLog as error:
                names(error.path, path)
                outcomes["refused"] += 1
            except AssertionError:
                raise
            except Exception as error:
                raise AssertionError(f"input {number}: {type(error).__name__}: {error}") from error
            written.put(path, written.content[path])
    assert min(outcomes["read"], outcomes["refused"]) > inputs // 50, outcomes


def with_misplaced_frame(written: WrittenLog, path: str, random: Random) -> bytes:
    """The content of segment `path`, with one of its frames overwritten by a frame of any segment."""
    source = random.choice(written.paths)
    moved, target = random.choice(written.frames[source]), random.choice(written.frames[path])
    frame = written.content[source][moved.offset : moved.end_offset]
    if random.random() < 0.5:
        # The frame gets the first 8 bytes of the overwritten frame.
        frame = written.content[path][target.offset : target.offset + 8] + frame[8:]
        frame = frame[:-4] + U32.pack(google_crc32c.value(frame[:-4]))  # Correct the checksum.
    data = written.content[path]
    return (data[: target.offset] + frame + data[target.offset + len(frame) :])[: max(len(data), target.end_offset)]


SNAPSHOT_CHUNKS = [b"the first chunk", b"x" * 300, b"\0" * 40, b"the last"]


@sizes
def test_a_snapshot_whose_bytes_changed_is_what_was_built_or_refused(
    inputs: int, record_property: RecordProperty
) -> None:
    outcomes: Counter[str] = Counter()
    with campaign(record_property, surface="snapshot files, bytes", seed=43, inputs=inputs) as random:
        structures = Structures(random)
        files, path, data = a_snapshot()
        content = files.edit(path)
        for number in range(inputs):
            content[:] = structures.changed_bytes(data)
            outcome, header = opened_snapshot(files, path, number)
            outcomes[outcome] += 1
            assert header is None or bytes(content) == data, number
    assert min(outcomes["opened"], outcomes["refused"]) > inputs // 500, outcomes


@sizes
def test_a_snapshot_of_any_content_under_right_checksums_opens_or_is_refused(
    inputs: int, record_property: RecordProperty
) -> None:
    outcomes: Counter[str] = Counter()
    with campaign(record_property, surface="snapshot files, content", seed=44, inputs=inputs) as random:
        structures = Structures(random)
        files, path, data = a_snapshot()
        fields = header_fields(data)
        content = files.edit(path)
        for number in range(inputs):
            is_free = random.random() < 0.5
            body = with_changed_machine(fields, structures) if is_free else changed_map(fields, structures, random)
            content[:] = snapshot_of(body, SNAPSHOT_CHUNKS, random)
            outcome, _ = opened_snapshot(files, path, number)
            outcomes[outcome] += 1
    assert min(outcomes["opened"], outcomes["refused"]) > inputs // 20, outcomes


def a_snapshot() -> tuple[PowerLossFiles, str, bytes]:
    files = new_folder()
    storage = opened(files, LIMITS)
    synced(files, storage.log, write(*entries(1, 9), term=1))
    info = built(files, storage, snapshot_header(7), SNAPSHOT_CHUNKS)
    storage.snapshots.drop_older()
    files.run()
    path = f"{SNAPSHOTS}/{info.name}"
    return files, path, bytes(files.edit(path))


def header_fields(data: bytes) -> dict[object, object]:
    """The map at the head of a snapshot file."""
    *_, length = PREAMBLE.unpack_from(data)
    fields = cbor2.loads(data[PREAMBLE.size : PREAMBLE.size + length])
    assert isinstance(fields, dict)
    return fields


def changed_map(fields: dict[object, object], structures: Structures, random: Random) -> bytes:
    """An encoded map with some of its items changed. In rare cases the result is not a map, or not CBOR."""
    item = structures.changed(fields, random.choice((1, 1, 1, 2, 4)))
    try:
        body = cbor2.dumps(item)
    except Exception:  # The changed map cannot be encoded, so no file can contain it.
        body = cbor2.dumps(fields)
    return structures.changed_bytes(body) if random.random() < 0.3 else body


def with_changed_machine(fields: dict[object, object], structures: Structures) -> bytes:
    """The encoded map with a change in the state machine's part, where storage accepts any map.

    Most other fields of a header are repeated in the file's name or in an identity, so a change of such a field is
    found.
    """
    return cbor2.dumps({**fields, "machine": structures.changed(fields["machine"])})


def snapshot_of(body: bytes, chunks: list[bytes], random: Random) -> bytes:
    """A file around an encoded header, with every checksum right."""
    version = random.choice((1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 2, 2**32 - 1))
    raw = PREAMBLE.pack(b"HWM-SNP\n", version, len(body)) + body
    checksum = google_crc32c.value(raw)
    parts, total_bytes = [raw, U32.pack(checksum)], 0
    for chunk in chunks:
        head, checksum = encode_chunk(chunk, checksum)
        parts += [head, chunk]
        total_bytes += len(chunk)
    count = len(chunks) + random.choice((0, 0, 0, 0, 0, 0, 0, 1))
    return b"".join([*parts, encode_trailer(count, total_bytes, checksum)])


def opened_snapshot(files: PowerLossFiles, path: str, number: int) -> tuple[str, SnapshotHeader | None]:
    """Open the folder of the one snapshot, and read it."""
    folder = SnapshotFolder(files, SNAPSHOTS, identity=IDENTITY, ballast=Ballast(files, 0))
    try:
        folder.open(1)
        assert list(folder.chunks(folder.latest())) == SNAPSHOT_CHUNKS
    except (CorruptSnapshot, NewerFormat) as error:
        names(error.path, path)
        return "refused", None
    except Exception as error:
        raise AssertionError(f"input {number}: {type(error).__name__}: {error}") from error
    return "opened", folder.latest().header


PINS = {"n2": bytes(range(16)), "n3": bytes(16)}


@sizes
def test_meta_and_pins_whose_bytes_changed_are_what_they_were_or_refused(
    inputs: int, record_property: RecordProperty
) -> None:
    outcomes: Counter[str] = Counter()
    with campaign(record_property, surface="meta and pins, bytes", seed=45, inputs=inputs) as random:
        structures = Structures(random)
        files = new_folder()
        files_of = sealed_files()
        for number in range(inputs):
            path, data, _ = random.choice(files_of)
            for each, sound, _ in files_of:
                files.edit(each)[:] = sound
            changed = structures.changed_bytes(data)
            files.edit(path)[:] = changed
            is_refused = read_sealed(files, path, number)
            assert is_refused or changed == data, number
            outcomes["refused" if is_refused else "read"] += 1
    assert min(outcomes["read"], outcomes["refused"]) > inputs // 500, outcomes


@sizes
def test_meta_and_pins_of_any_content_under_right_checksums_are_read_or_refused(
    inputs: int, record_property: RecordProperty
) -> None:
    outcomes: Counter[str] = Counter()
    with campaign(record_property, surface="meta and pins, content", seed=46, inputs=inputs) as random:
        structures = Structures(random)
        files = new_folder()
        files_of = sealed_files()
        for number in range(inputs):
            path, data, magic = random.choice(files_of)
            for each, sound, _ in files_of:
                files.edit(each)[:] = sound
            body = changed_map(cbor2.loads(data[16:-4]), structures, random)
            version = random.choice((1, 1, 1, 1, 1, 1, 1, 0, 2))
            raw = magic + U32.pack(version) + U32.pack(len(body) + random.choice((0, 0, 0, 0, 0, 1))) + body
            files.edit(path)[:] = raw + U32.pack(google_crc32c.value(raw))
            outcomes["refused" if read_sealed(files, path, number) else "read"] += 1
    assert min(outcomes["read"], outcomes["refused"]) > inputs // 50, outcomes


def sealed_files() -> list[tuple[str, bytes, bytes]]:
    """Path, content and magic of each sealed file."""
    joins_as = Member("n1", "127.0.0.1:7001", "127.0.0.1:7101")
    return [
        ("meta", encode_meta(IDENTITY, joins_as), META_MAGIC),
        ("pins", encode_pins(IDENTITY, PINS), PINS_MAGIC),
    ]


def read_sealed(files: PowerLossFiles, path: str, number: int) -> bool:
    """True if the file is refused. Otherwise assert that the content has the types that a node relies on."""
    try:
        identity, joins_as = read_identity(files), read_joins_as(files)
        pins = PinFile(files, IDENTITY).pins()
    except (CorruptMeta, NewerFormat) as error:
        names(error.path, path)
        return True
    except Exception as error:
        raise AssertionError(f"input {number}: {type(error).__name__}: {error}") from error
    assert (type(identity.cluster_id), type(identity.group_id), type(identity.node_id)) == (bytes, int, str), identity
    assert type(identity.incarnation_id) is bytes, identity
    assert joins_as is None or {type(joins_as.peer_address), type(joins_as.client_address)} == {str}, joins_as
    assert all(type(name) is str and type(pin) is bytes and len(pin) == 16 for name, pin in pins.items()), pins
    return False


@sizes
def test_a_backup_whose_bytes_changed_is_what_was_saved_or_refused(
    inputs: int, record_property: RecordProperty, tmp_path: Path
) -> None:
    outcomes: Counter[str] = Counter()
    path = tmp_path / "saved"
    with campaign(record_property, surface="backup files, bytes", seed=47, inputs=inputs) as random:
        structures = Structures(random)
        data = a_backup()
        path.write_bytes(data)
        digest = read_initial_state(path).digest
        for number in range(inputs):
            changed = structures.changed_bytes(data)
            path.write_bytes(changed)
            outcomes[read_backup(path, digest if changed == data else None, number)] += 1
    assert min(outcomes["read"], outcomes["refused"]) > inputs // 500, outcomes


@sizes
def test_a_backup_of_any_content_under_right_checksums_is_read_or_refused(
    inputs: int, record_property: RecordProperty, tmp_path: Path
) -> None:
    outcomes: Counter[str] = Counter()
    path = tmp_path / "saved"
    with campaign(record_property, surface="backup files, content", seed=48, inputs=inputs) as random:
        structures = Structures(random)
        data = a_backup()
        fields, chunks = header_fields(data), chunks_of(data)
        for number in range(inputs):
            changed_chunks, body = list(chunks), cbor2.dumps(fields)
            match random.randrange(4):
                case 0:
                    body = changed_map(fields, structures, random)
                case 1:
                    body = with_changed_machine(fields, structures)
                case _:
                    place = random.randrange(len(chunks))
                    changed_chunks[place] = changed_rows(chunks[place], structures, random)
            path.write_bytes(snapshot_of(body, changed_chunks, random))
            outcomes[read_backup(path, b"", number)] += 1
    assert min(outcomes["read"], outcomes["refused"]) > inputs // 50, outcomes


def changed_rows(chunk: bytes, structures: Structures, random: Random) -> bytes:
    """A chunk of rows with some part of it changed. The chunk is never empty, because an empty chunk is the trailer."""
    try:
        changed = cbor2.dumps(structures.changed(cbor2.loads(chunk)))
    except Exception:
        return chunk
    return structures.changed_bytes(changed) or b"\0" if random.random() < 0.2 else changed


def a_backup() -> bytes:
    """A saved store with records, a deletion, sessions and kept results."""
    fed = Fed(deletions_max=3)
    session = fed.register(time=5)
    for number in range(6):
        fed.do(Put(b"key/%d" % number, b"value %d" % number), session, number + 1)
    fed.do(Delete(b"key/1"), session, 7, ack=2)
    picture = fed.machine.snapshot()
    header = SnapshotHeader(index=9, term=1, configuration=CONFIGURATION, machine=picture.header)
    return _around(encode_header(header, IDENTITY), list(picture.chunks))


def _around(start: bytes, chunks: list[bytes]) -> bytes:
    parts, checksum, total_bytes = [start], int.from_bytes(start[-4:], "big"), 0
    for chunk in chunks:
        head, checksum = encode_chunk(chunk, checksum)
        parts += [head, chunk]
        total_bytes += len(chunk)
    return b"".join([*parts, encode_trailer(len(chunks), total_bytes, checksum)])


def chunks_of(data: bytes) -> list[bytes]:
    """The chunks of a valid file."""
    *_, length = PREAMBLE.unpack_from(data)
    at, chunks = PREAMBLE.size + length + 4, []
    while size := U32.unpack_from(data, at)[0]:
        chunks.append(data[at + 8 : at + 8 + size])
        at += 8 + size
    return chunks


def read_backup(path: Path, digest: bytes | None, number: int) -> str:
    """Judge the file as `hwm snapshot restore` does. `digest` is the hash of the only state that the file may contain.
    It is empty if the file may contain any state, and None if the file must be refused."""
    try:
        begin = read_initial_state(path)
    except BackupFailed as error:
        names(str(error), str(path))
        names(error.hint, "")
        return "refused"
    except Exception as error:
        raise AssertionError(f"input {number}: {type(error).__name__}: {error}") from error
    assert digest is not None, number
    assert digest in (b"", begin.digest), number
    return "read"

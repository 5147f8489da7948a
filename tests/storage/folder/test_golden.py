"""Files of format version 1 (`golden/v1`), which never change. Every build can read them, and writes the same bytes.

A new format version gets a separate folder. The present folder stays then, and so does the code that reads it.
"""

from __future__ import annotations

from pathlib import Path

from raft import Entry, EntryKind, HardState, LogPosition
from storage import MakeFolder, StorageLimits
from storage.wal.newest_segment_note import note_path
from tests.storage.support.builders import (
    LOG,
    SNAPSHOTS,
    built,
    entry,
    everything,
    frames,
    new_folder,
    opened,
    segments,
    snapshot_header,
    synced,
)
from tests.storage.support.builders import write as step
from tests.storage.support.power_loss_files import PowerLossFiles

GOLDEN = Path(__file__).parents[1] / "golden" / "v1"
LIMITS = StorageLimits(segment_bytes_max=800, ballast_bytes=0, preallocate_bytes=0)
FIRST = (Entry(1, 1, EntryKind.NO_OP, b"\x81\x00"), entry(2), entry(3, payload=b""))
REPLACING = Entry(2, 2, EntryKind.CONFIGURATION, b"\x80")


def golden_folder() -> PowerLossFiles:
    """Write the history of the golden files. It has every kind of frame, entry and file."""
    files = new_folder(seed=11)
    storage = opened(files, LIMITS, seed=12)
    log = storage.log
    storage.pins.pin("n2", bytes(range(100, 116)), lambda _: None)
    synced(files, log, step(term=1, voted_for="n2"))
    synced(files, log, step(*FIRST))
    synced(files, log, step(REPLACING, term=2, voted_for="n1", replace_from=2))
    for index in range(3, 8):
        synced(files, log, step(entry(index, 2, bytes([index]) * 40)), hint=index - 1)
    built(files, storage, snapshot_header(4, 2), [b"first chunk", b"second"])
    synced(files, log, step(term=5), step(reset=(9, 5)), hint=9)
    built(files, storage, snapshot_header(9, 5), [b"only chunk"])
    synced(files, log, step(entry(10, 5), entry(11, 5)), hint=9)
    synced(files, log, hint=9)
    return files


def paths(files: PowerLossFiles, folder: str = "") -> list[str]:
    """All files below a folder."""
    found: list[str] = []
    for name in files.names(folder):
        path = f"{folder}/{name}" if folder else name
        below = paths(files, path)
        found += below or [path]
    return found


def read_golden() -> PowerLossFiles:
    """The committed files."""
    files = PowerLossFiles()
    files.submit([MakeFolder(LOG), MakeFolder(SNAPSHOTS)], lambda _: None)
    for path in sorted(GOLDEN.rglob("*")):
        if path.is_file():
            files.put(str(path.relative_to(GOLDEN)), path.read_bytes())
    return files


def test_the_golden_files_say_what_was_put_into_them() -> None:
    storage = opened(read_golden())

    assert storage.hard_state == HardState(term=5, voted_for=None, commit_index=9)
    assert everything(storage.log) == [entry(10, 5), entry(11, 5)]
    assert storage.log.term_runs() == (LogPosition(10, 5),)
    assert storage.snapshots.latest().header == snapshot_header(9, 5)
    assert list(storage.snapshots.chunks(storage.snapshots.latest())) == [b"only chunk"]
    assert dict(storage.pins.pins()) == {"n2": bytes(range(100, 116))}
    assert storage.warnings == ()


def test_every_golden_frame_says_what_was_put_into_it() -> None:
    """The golden files also contain frames that a later reset dropped."""
    files = read_golden()
    said = [frame for path in segments(files) for frame in frames(files, path)]
    written = [each for path in segments(files) for each in entries_in(files, path)]

    assert [frame.batch for frame in said] == list(range(1, len(said) + 1))
    assert [frame.replace_from for frame in said if frame.replace_from] == [2]
    assert [frame.reset for frame in said if frame.reset] == [LogPosition(9, 5)]
    assert written == [
        *FIRST,
        REPLACING,
        *(entry(index, 2, bytes([index]) * 40) for index in range(3, 8)),
        *(entry(10, 5), entry(11, 5)),
    ]


def entries_in(files: PowerLossFiles, path: str) -> list[Entry]:
    """All entries of a segment, including those that are not in force."""
    data = files.read(path, 0, 1 << 20)
    return [each for frame in frames(files, path) for each in frame.entries(data)]


def test_the_same_history_makes_the_same_files() -> None:
    """If the written bytes differed, the format would have changed and would need a new version. The build that made
    the golden files wrote no note about the newest segment."""
    made = golden_folder()
    made.forget(note_path(LOG, len(segments(made))))

    assert paths(made) == sorted(str(path.relative_to(GOLDEN)) for path in GOLDEN.rglob("*") if path.is_file())
    for path in paths(made):
        assert made.read(path, 0, 1 << 20) == (GOLDEN / path).read_bytes(), path

"""If too many files are open, nothing is damaged. The log waits until it can open a file, and reads still work."""

from __future__ import annotations

import errno
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from storage import CreateFile, Delete, DiskFull, InlineFiles, Operation, Rename, StorageLimits, SyncFolder, Write
from storage.ballast import BALLAST_PATH
from tests.storage.support.builders import (
    built,
    entries,
    entry,
    everything,
    first_start,
    new_folder,
    opened,
    snapshot_header,
    synced,
    write,
)
from tests.storage.support.power_loss_files import PowerLossFiles, keep_everything

pytestmark = pytest.mark.timeout(30)
LIMITS = StorageLimits(segment_bytes_max=400, ballast_bytes=1000)
WORDS = "too many files are open (limit 64)"


def refusing(files: PowerLossFiles, count: int) -> None:
    """From now on, `count` operations that open a file succeed, and all later ones fail."""
    left = [count]

    def refuse(operation: Operation) -> OSError | None:
        if isinstance(operation, Rename | Delete):
            return None  # Nothing is opened.
        left[0] -= 1
        return OSError(errno.EMFILE, WORDS, getattr(operation, "path", "")) if left[0] < 0 else None

    files.refuse = refuse


@pytest.mark.parametrize("count", range(4))
def test_a_segment_that_cannot_be_opened_is_waited_for_and_the_ballast_stays(count: int) -> None:
    """At any step there may be no descriptor left. Room on the disk would not help here. So the log does not release
    the ballast."""
    files = new_folder()
    storage = opened(files, LIMITS)
    synced(files, storage.log, write(*entries(1, 3), term=1))
    outcome: list[BaseException | None] = []
    refusing(files, count)
    storage.log.append(write(entry(4, payload=bytes(400))))
    storage.log.sync(0, outcome.append)
    files.run()
    for _ in range(3):
        storage.log.look_for_room()
        files.run()

    assert (outcome, storage.log.is_disk_full, storage.log.lacks_descriptors) == ([], True, WORDS)
    assert files.size_bytes(BALLAST_PATH) == 1000
    assert storage.log.read(1, 4, 1 << 20)[-1].index == 4
    assert opened(files.after_power_loss(keep_everything), LIMITS).log.last_index in (3, 4)

    files.refuse = lambda _: None
    storage.log.look_for_room()
    files.run()

    assert outcome == [None]
    assert (storage.log.is_disk_full, storage.log.lacks_descriptors) == (False, "")
    synced(files, storage.log, write(entry(5)))
    assert [each.index for each in everything(opened(files, LIMITS).log)] == [1, 2, 3, 4, 5]


def test_a_disk_that_is_full_as_well_gives_its_ballast_back_once_files_can_be_opened() -> None:
    files = new_folder()
    storage = opened(files, LIMITS)
    synced(files, storage.log, write(*entries(1, 3), term=1))
    outcome: list[BaseException | None] = []
    refusing(files, 0)
    storage.log.append(write(entry(4, payload=bytes(400))))
    storage.log.sync(0, outcome.append)
    files.run()
    assert storage.log.lacks_descriptors == WORDS
    files.refuse = lambda operation: (
        OSError(errno.ENOSPC, "full") if isinstance(operation, Write) and BALLAST_PATH in files.names("") else None
    )

    for _ in range(3):
        storage.log.look_for_room()
        files.run()

    assert outcome == [None]
    assert (storage.log.is_disk_full, storage.log.lacks_descriptors) == (True, "")


def test_a_snapshot_that_finds_no_descriptor_is_given_up_without_harm() -> None:
    files = new_folder()
    storage = opened(files, LIMITS)
    synced(files, storage.log, write(*entries(1, 3), term=1))
    files.refuse = lambda each: OSError(errno.ENFILE, WORDS) if isinstance(each, CreateFile) else None

    writer = storage.snapshots.create(snapshot_header(3))
    outcome: list[BaseException | None] = []
    writer.write(b"state", outcome.append)
    files.run()
    writer.abandon()
    files.run()

    (refused,) = outcome
    assert isinstance(refused, DiskFull)
    assert not storage.log.is_disk_full
    assert str(refused).startswith(f"{WORDS}: a snapshot was given up")
    assert str(pickle.loads(pickle.dumps(refused))) == str(refused)
    files.refuse = lambda _: None
    assert built(files, storage, snapshot_header(3)).header.index == 3


def test_a_deletion_whose_folder_cannot_be_opened_does_not_end_the_log() -> None:
    files = new_folder()
    storage = opened(files, LIMITS)
    for index in range(1, 20):
        synced(files, storage.log, write(entry(index), term=1))
    files.refuse = lambda each: OSError(errno.EMFILE, WORDS) if isinstance(each, SyncFolder) else None
    storage.log.drop_before(15)
    files.run()
    files.refuse = lambda _: None

    synced(files, storage.log, write(entry(20)))
    assert storage.log.last_index == 20


MEMBER = """
import json, os, resource, sys
from pathlib import Path
from storage import InlineFiles
from tests.storage.support.builders import entries, entry, everything, opened, synced, write
from tests.storage.files.test_descriptors import LIMITS

def limit(count):
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))

hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
files = InlineFiles(Path(sys.argv[1]))
log = opened(files, LIMITS).log
for index in range(1, 30):
    synced(files, log, write(entry(index), term=1))
log.read(29, 29, 99)
highest = max(map(int, os.listdir("/dev/fd")))
while os.dup(0) < highest:
    pass
limit(highest + 1)  # Whatever is opened now needs the place of what was open.
outcome = []
log.append(write(entry(30, payload=bytes(400))))
log.sync(0, outcome.append)
files.run()
log.look_for_room()
files.run()
short = [list(outcome), log.lacks_descriptors, [each.index for each in log.read(1, 30, 1 << 20)]]
limit(hard)
log.look_for_room()
files.run()
print(json.dumps([*short, outcome, log.lacks_descriptors, highest + 1]))
"""


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="the highest descriptor is not known")
def test_a_process_with_too_many_open_files_reads_its_log_and_writes_again_when_there_are_fewer(tmp_path: Path) -> None:
    """The limit on open files is the real limit of the operating system. The reads use the descriptors that were
    reserved for reads."""
    files = InlineFiles(tmp_path)
    first_start(files)
    files.close()
    root = Path(__file__).parents[3]

    done = subprocess.run(
        [sys.executable, "-c", MEMBER, str(tmp_path)], capture_output=True, text=True, timeout=25, check=True, cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
    )  # fmt: skip
    outcome, lacks, indexes, later, lacks_later, limit = json.loads(done.stdout)

    assert outcome == []
    assert lacks == f"too many files are open (limit {limit})"
    assert indexes == list(range(1, 31))
    assert (later, lacks_later) == ([None], "")
    files = InlineFiles(tmp_path)
    assert [each.index for each in everything(opened(files, LIMITS).log)] == list(range(1, 31))
    files.close()

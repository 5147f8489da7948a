"""The simulated disk keeps what storage/files/interface.py promises, and a crash may lose everything else."""

from __future__ import annotations

import errno
from random import Random

import pytest

from harness.sim.plan.plan import DiskPlan
from harness.sim.world.damage import ProvenBytes
from harness.sim.world.disk import Immediately, SimFiles
from harness.sim.world.disk_image import SECTOR_BYTES, DiskImage
from harness.sim.world.probes import LOG_FOLDER
from storage import CreateFile, Delete, MakeFolder, Operation, Rename, SetSize, SyncFile, SyncFolder, Write

SEEDS = range(300)


def an_image(*operations: Operation) -> DiskImage:
    image = DiskImage()
    for operation in operations:
        image.carry_out(operation)
    return image


def a_synced_file(content: bytes) -> list[Operation]:
    return [CreateFile("f"), Write("f", 0, (content,)), SyncFile("f"), SyncFolder("")]


def after_power_loss(operations: list[Operation], seed: int) -> DiskImage:
    image = an_image(*operations)
    image.lose_power(Random(seed))
    return image


def test_what_was_synced_with_its_name_survives_every_power_loss() -> None:
    """Bytes are durable after SyncFile, and names after SyncFolder (storage/files/interface.py)."""
    for seed in SEEDS:
        image = after_power_loss(a_synced_file(b"abc"), seed)

        assert bytes(image.file("f").current) == b"abc"


def test_a_file_whose_name_was_not_synced_may_be_gone_or_be_there() -> None:
    """A crash may keep any part of a file whose name was not synced, or nothing."""
    operations: list[Operation] = [CreateFile("f"), Write("f", 0, (b"abc",)), SyncFile("f")]

    survivors = {tuple(after_power_loss(operations, seed).names) for seed in SEEDS}

    assert survivors == {(), ("f",)}


def test_a_file_is_lost_with_the_folder_whose_name_was_not_synced() -> None:
    """The name of a folder must be synced, too."""
    operations: list[Operation] = [MakeFolder("a/b"), CreateFile("a/b/f"), SyncFile("a/b/f"), SyncFolder("a/b")]

    survivors = {tuple(sorted(after_power_loss(operations, seed).names)) for seed in SEEDS}

    assert survivors == {(), ("a",), ("a", "a/b", "a/b/f")}


def test_un_synced_bytes_are_lost_kept_cut_or_mixed_but_synced_ones_beside_them_never_harmed() -> None:
    """A crash can tear or damage only the sectors that are being written, and no other bytes."""
    old, new = b"o" * 700, b"n" * 3 * SECTOR_BYTES
    operations: list[Operation] = [*a_synced_file(old), Write("f", len(old), (new,))]

    contents = {bytes(after_power_loss(operations, seed).file("f").current) for seed in SEEDS}

    assert all(content.startswith(old) for content in contents)
    assert {old, old + new} <= contents
    assert any(set(content[len(old) :]) - set(b"n\0") for content in contents)  # Garbage.
    assert any(len(old) < len(content) < len(old + new) for content in contents)  # Cut short.


def test_a_rename_is_one_step_and_needs_its_own_folder_sync() -> None:
    """After a crash, the file has either the old name or the new one."""
    operations = [*a_synced_file(b"abc"), Rename("f", "g")]

    survivors = {tuple(after_power_loss(operations, seed).names) for seed in SEEDS}

    assert survivors == {("f",), ("g",)}


def test_a_deletion_may_be_forgotten_and_a_size_as_well() -> None:
    """Names and sizes, too, are durable only once they are synced."""
    deleted = {tuple(after_power_loss([*a_synced_file(b"abc"), Delete("f")], seed).names) for seed in SEEDS}
    cut = {bytes(after_power_loss([*a_synced_file(b"abc"), SetSize("f", 1)], seed).file("f").current) for seed in SEEDS}

    assert deleted == {(), ("f",)}
    assert cut == {b"abc", b"a"}


def test_killing_a_process_loses_nothing_that_was_carried_out_but_makes_nothing_durable() -> None:
    """The page cache survives `kill -9`. So a kill proves nothing about fsync."""
    image, aside = DiskImage(), Immediately()
    files = SimFiles(image, DiskPlan(), Random(1), aside)
    files.submit([CreateFile("f"), Write("f", 0, (b"abc",))], lambda _: None)
    aside.run()

    files.crash(Random(1))

    assert bytes(image.file("f").current) == b"abc"
    assert image.synced_copy().names == {}


def test_a_crash_finds_a_submission_at_any_of_its_steps_and_never_calls_back() -> None:
    """A sync that was under way at the crash may or may not have taken effect."""
    found, called = set(), list[BaseException | None]()
    for seed in SEEDS:
        image = DiskImage()
        files = SimFiles(image, DiskPlan(), Random(seed), lambda *_: None)
        files.submit(a_synced_file(b"abc"), called.append)

        files.crash(Random(seed))
        found.add((bytes(image.file("f").current) if "f" in image.names else None, bool(image.synced_copy().names)))

    assert found == {(None, False), (b"", False), (b"abc", False), (b"abc", True)}
    assert called == []


def test_submissions_are_carried_out_in_order_and_fail_at_the_first_bad_step() -> None:
    """After an error, the rest of the submission is skipped, but the next submission is carried out
    (storage/files/interface.py)."""
    image, aside = DiskImage(), Immediately()
    files = SimFiles(image, DiskPlan(), Random(1), aside)
    ends: list[BaseException | None] = []
    files.submit([Write("f", 0, (b"a",)), CreateFile("g")], ends.append)
    files.submit([CreateFile("f")], ends.append)
    assert ends == []  # The callback is never called from inside `submit`.

    aside.run()

    assert [type(end) for end in ends] == [FileNotFoundError, type(None)]
    assert files.names("") == ["f"]
    with pytest.raises(FileNotFoundError):
        files.size_bytes("g")


def test_is_synced_says_no_while_anything_in_the_folder_is_not_durable() -> None:
    """The rule "durable on a majority" depends on `is_synced`."""
    image, aside = an_image(MakeFolder("log"), SyncFolder("")), Immediately()
    files = SimFiles(image, DiskPlan(), Random(1), aside)
    states = []
    steps: list[list[Operation]] = [
        [CreateFile("log/1"), Write("log/1", 0, (b"a",))],
        [SyncFile("log/1")],
        [SyncFolder("log")],
    ]
    for operations in steps:
        files.submit(operations, lambda _: None)
        states.append(files.is_synced("log"))
        aside.run()
        states.append(files.is_synced("log"))

    assert states == [False, False, False, False, False, True]


def test_after_a_sync_that_failed_the_next_one_succeeds_and_has_persisted_nothing() -> None:
    """After the failed sync the system marks the pages clean. Programs see these pages until the power is lost, but no
    later sync writes them."""
    image, aside = an_image(MakeFolder("log"), CreateFile("log/1"), SyncFolder("log"), SyncFolder("")), Immediately()
    files = SimFiles(image, DiskPlan(), Random(1), aside)
    ends: list[BaseException | None] = []
    image.fails_sync = SyncFile("log")
    files.submit([Write("log/1", 0, (b"lost",)), SyncFile("log/1")], ends.append)
    files.submit([SyncFile("log/1")], ends.append)
    files.submit([Write("log/1", 4, (b"kept",)), SyncFile("log/1")], ends.append)

    aside.run()
    is_synced, seen = files.is_synced("log"), bytes(image.file("log/1").current)
    image.lose_power(Random(1))

    assert [type(end) for end in ends] == [OSError, type(None), type(None)]
    assert (files.has_failed, is_synced, seen) == (True, False, b"lostkept")
    assert bytes(image.file("log/1").current) == b"\0\0\0\0kept"


def test_only_what_a_second_sync_has_proven_rots_and_by_one_bit() -> None:
    """A member can find damage only if a later frame proves that the damaged bytes were synced.

    See docs/reference/specification.md#48-torn-tail-and-damage.
    """
    path = f"{LOG_FOLDER}/1"
    rotten = set()
    for seed in SEEDS:
        image = an_image(MakeFolder(LOG_FOLDER), CreateFile(path), Write(path, 0, (b"aa",)), SyncFile(path))
        proven = ProvenBytes(image)
        proven.log_synced()
        assert not proven.rot(Random(seed))
        image.carry_out(Write(path, 2, (b"bb",)))
        image.carry_out(SyncFile(path))
        proven.log_synced()

        assert proven.rot(Random(seed))
        rotten.add(bytes(image.file(path).current))
        assert image.file(path).durable == image.file(path).current

    changed = [[place for place in range(4) if content[place] != b"aabb"[place]] for content in sorted(rotten)]
    assert {len(places) for places in changed} == {1}
    assert {places[0] for places in changed} == {0, 1}
    assert len(rotten) == 2 * 8


def test_a_full_disk_takes_what_fits_and_says_no_until_there_is_room() -> None:
    """`writev` may write only a part of the bytes. After a partial write, the bytes are no part of the log until all of
    them are written again. Until then `is_synced` returns False."""
    image = an_image(MakeFolder("log"), CreateFile("log/1"), SyncFolder("log"), SyncFolder(""), *a_synced_file(b"old"))
    aside = Immediately()
    files = SimFiles(image, DiskPlan(), Random(1), aside)
    again: list[Operation] = [Write("log/1", 0, (b"abcd",)), SyncFile("log/1")]
    ends: list[BaseException | None] = []
    image.size_bytes_max = image.size_bytes + 2
    files.submit([Write("f", 0, (b"new",))], ends.append)  # Replacing existing bytes takes no room.
    files.submit(again, ends.append)
    aside.run()
    found, is_synced = bytes(image.file("log/1").current), files.is_synced("log")

    files.submit([Delete("f")], ends.append)
    files.submit(again[:1], ends.append)
    aside.run()
    is_written_synced = files.is_synced("log")
    files.submit(again[1:], ends.append)
    aside.run()

    assert [getattr(end, "errno", None) for end in ends] == [None, errno.ENOSPC, None, None, None]
    assert (found, is_synced) == (b"ab", False)
    assert (is_written_synced, files.is_synced("log")) == (False, True)
    assert bytes(image.file("log/1").durable) == b"abcd"


@pytest.mark.parametrize(
    "operation",
    [CreateFile("g"), MakeFolder("folder"), Rename("f", "g"), SetSize("f", 100)],
    ids=lambda operation: type(operation).__name__,
)
def test_a_full_disk_has_no_room_for_names_and_sizes_either(operation: Operation) -> None:
    """A folder grows with its names. Replacing a name or making a file smaller takes no room."""
    image = an_image(*a_synced_file(b"abc"), CreateFile("other"))
    image.size_bytes_max = image.size_bytes

    with pytest.raises(OSError, match="No space left") as failed:
        image.carry_out(operation)
    image.carry_out(SetSize("f", 1))
    image.carry_out(Rename("f", "other"))

    assert failed.value.errno == errno.ENOSPC
    assert (sorted(image.names), bytes(image.file("other").current)) == (["other"], b"a")


def test_a_file_that_found_no_room_for_its_name_is_no_part_of_what_the_log_says() -> None:
    """A segment has a temporary name while it is written. The segment belongs to the log only when it has its final
    name."""
    image = an_image(MakeFolder("log"), CreateFile("log/1.tmp"), SyncFolder(""))
    aside = Immediately()
    files = SimFiles(image, DiskPlan(), Random(1), aside)
    image.size_bytes_max = image.size_bytes + 1
    naming: list[Operation] = [Rename("log/1.tmp", "log/1"), SyncFolder("log")]
    ends: list[BaseException | None] = []
    states = []
    files.submit([Write("log/1.tmp", 0, (b"a",)), SyncFile("log/1.tmp"), *naming], ends.append)
    aside.run()
    states.append(files.is_synced("log"))

    image.size_bytes_max = None
    for step in naming:
        files.submit([step], ends.append)
        aside.run()
        states.append(files.is_synced("log"))

    assert [getattr(end, "errno", None) for end in ends] == [errno.ENOSPC, None, None]
    assert states == [False, False, True]

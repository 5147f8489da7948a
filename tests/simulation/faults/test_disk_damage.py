"""Disks that fail, lie and rot: the behaviour of such a disk, and whole runs on such disks, which keep every rule."""

from __future__ import annotations

import errno
from dataclasses import replace
from random import Random

import pytest

from harness.sim.checks.cluster import SafetyChecker
from harness.sim.checks.log_copies import ShadowLogs
from harness.sim.engine.errors import Violation
from harness.sim.faults.damage_budget import DamageBudget
from harness.sim.faults.disks import FAILING_SYNCS
from harness.sim.plan.draw import draw_plan
from harness.sim.plan.plan import DISK_KINDS, LOSS, SECOND_NS, DiskPlan, Fault, Plan
from harness.sim.simulation import Simulation
from harness.sim.world.damage import SEALED_PATHS, SNAPSHOT_FOLDER, ProvenBytes
from harness.sim.world.disk import BALLAST_PATH, Immediately, SimFiles
from harness.sim.world.disk_image import SECTOR_BYTES, DiskImage
from harness.sim.world.probes import LOG_FOLDER
from raft import Entry, EntryKind, HardState, LogPosition, LogStore, LogWrite, encode_batch
from storage import CreateFile, Delete, MakeFolder, Operation, Rename, SetSize, SyncFile, SyncFolder, Write
from tests.simulation.support.plans import run_all, run_until

SEEDS = range(200)
FOLDER: list[Operation] = [MakeFolder("log"), SyncFolder("")]


def a_file(path: str, content: bytes) -> list[Operation]:
    return [CreateFile(path), Write(path, 0, (content,)), SyncFile(path), SyncFolder("log")]


def a_disk(*operations: Operation, seed: int = 1) -> tuple[DiskImage, SimFiles, Immediately]:
    image, aside = DiskImage(), Immediately()
    for operation in (*FOLDER, *operations):
        image.carry_out(operation)
    return image, SimFiles(image, DiskPlan(), Random(seed), aside), aside


def outcomes(files: SimFiles, aside: Immediately, *submissions: list[Operation]) -> list[int | None]:
    """The error number of each submission; None if it succeeded."""
    ends: list[BaseException | None] = []
    for operations in submissions:
        files.submit(operations, ends.append)
    aside.run()
    return [getattr(end, "errno", None) for end in ends]


def test_a_sync_that_fails_may_have_written_some_sectors_and_no_later_sync_writes_the_others() -> None:
    """The system writes pages one by one. But after an error it marks all of them as clean."""
    new, durable = b"n" * 3 * SECTOR_BYTES, set()
    for seed in SEEDS:
        image, files, aside = a_disk(*a_file("log/1", b""), seed=seed)
        image.fails_sync = SyncFile("log")

        ends = outcomes(files, aside, [Write("log/1", 0, (new,)), SyncFile("log/1")], [SyncFile("log/1")])
        durable.add(bytes(image.file("log/1").durable))

        assert ends == [errno.EIO, None]
        assert bytes(image.file("log/1").current) == new
        assert files.has_failed

    assert {b"", b"n" * SECTOR_BYTES, bytes(SECTOR_BYTES) + b"n" * SECTOR_BYTES} < durable


def test_names_of_a_folder_whose_sync_failed_may_be_durable_in_order_and_the_next_sync_makes_them_so() -> None:
    """The file system keeps names in a journal. So a later sync makes the names durable even after an error."""
    found = set()
    for seed in SEEDS:
        image, files, aside = a_disk(seed=seed)
        image.fails_sync = SyncFolder("log")
        ends = outcomes(files, aside, [CreateFile("log/1"), CreateFile("log/2"), SyncFolder("log")])
        found.add(tuple(sorted(image.synced_copy().children("log"))))

        assert ends == [errno.EIO]
        assert outcomes(files, aside, [SyncFolder("log")]) == [None]
        assert image.synced_copy().children("log") == ["1", "2"]
        assert files.is_synced("log")

    assert found == {(), ("1",), ("1", "2")}


@pytest.mark.parametrize(
    ("operations", "failing", "rests_on_it"),
    [
        ([Delete("log/1"), SyncFolder("log")], SyncFolder("log"), False),
        ([CreateFile(BALLAST_PATH), SyncFolder("")], SyncFolder(""), False),
        ([Rename("log/1", "log/2"), SyncFolder("log")], SyncFolder("log"), True),
        ([Write("log/1", 0, (b"a",)), SyncFile("log/1")], SyncFile("log"), True),
    ],
)
def test_a_node_must_stop_after_a_failed_sync_only_if_something_was_to_rest_on_it(
    operations: list[Operation], failing: SyncFile | SyncFolder, rests_on_it: bool
) -> None:
    """No promise depends on the deletion of the ballast. The ballast exists only to free room, so it need not be
    durable."""
    image, files, aside = a_disk(*a_file("log/1", b"abc"))
    image.fails_sync = failing

    assert outcomes(files, aside, operations) == [errno.EIO]
    assert (files.has_failed, files.has_erred) == (rests_on_it, True)


def test_a_read_fails_once_and_only_where_it_is_meant_to() -> None:
    """`Files.read` either returns all requested bytes or raises an error. A read never returns less."""
    image, files, _ = a_disk(*a_file("log/1", b"abc"))
    image.fails_read_of = "log"

    with pytest.raises(OSError, match="Input/output error"):
        files.read("log/1", 0, 3)

    assert files.has_erred
    assert files.read("log/1", 0, 3) == b"abc"


def a_lie(seed: int) -> tuple[DiskImage, str]:
    """A disk with an old file and a second file. The last write of the second file was lost, or hit the wrong place."""
    image, files, aside = a_disk(*a_file("log/1", b"o" * 700), *a_file("log/2", b"p" * 10), seed=seed)
    told: list[str] = []
    files.lies_about, files.on_lie = "log", told.append
    assert outcomes(files, aside, [Write("log/2", 10, (b"new",)), SyncFile("log/2")]) == [None]
    assert files.is_synced("log")  # The disk reports that the file is synced.
    return image, told[0]


def test_a_lost_or_misdirected_write_is_seen_by_nobody_until_power_is_lost() -> None:
    """The page cache still contains the right bytes."""
    for seed in SEEDS:
        image, _ = a_lie(seed)

        assert bytes(image.file("log/1").current) == b"o" * 700
        assert bytes(image.file("log/2").current) == b"p" * 10 + b"new"

        lying = [image.is_lying]
        image.lose_power(Random(seed))
        lying.append(image.is_lying)

        assert lying == [True, False]
        assert bytes(image.file("log/2").current) != b"p" * 10 + b"new"


def test_a_lost_write_harms_nothing_else_and_a_misdirected_one_what_was_durable_in_that_folder() -> None:
    """The intended file may have grown by zeroes. The file that was hit by the write keeps its size."""
    found: dict[str, set[tuple[bytes, bytes]]] = {}
    for seed in SEEDS:
        image, how = a_lie(seed)
        image.lose_power(Random(seed))
        found.setdefault(how, set()).add((bytes(image.file("log/1").current), bytes(image.file("log/2").current)))

    old, short = b"o" * 700, b"p" * 10
    assert found["a write was lost"] == {(old, short), (old, short + bytes(3))}
    assert {first for first, _ in found["a write was misdirected"]} == {
        old,  # The write hit the other file, or hit this file after its end.
        b"o" * 10 + b"new" + b"o" * 687,
        b"o" * 522 + b"new" + b"o" * 175,
    }


def test_a_file_that_a_misdirected_write_hits_counts_as_synced_as_before() -> None:
    """The truncation of the file was never synced. But the disk has reported that all bytes in the file are synced."""
    hit = set()
    for seed in SEEDS:
        image, files, aside = a_disk(*a_file("log/1", b"o" * 700), *a_file("log/2", b"p" * 10), seed=seed)
        image.carry_out(SetSize("log/1", 600))
        before = files.is_synced("log")

        files.lies_about = "log"
        assert outcomes(files, aside, [Write("log/2", 10, (b"new",)), SyncFile("log/2")]) == [None]

        assert (before, files.is_synced("log")) == (True, True)
        hit.add(image.file("log/1").has_lied)

    assert hit == {True, False}


def test_a_write_behind_a_lie_counts_as_synced_when_it_is() -> None:
    """The false sync applies to the writes before it, and not to later writes."""
    for seed in SEEDS:
        image, files, aside = a_disk(*a_file("log/1", b"o" * 700), *a_file("log/2", b"p" * 10), seed=seed)
        files.lies_about = "log"
        assert outcomes(files, aside, [Write("log/2", 10, (b"new",)), SyncFile("log/2")]) == [None]

        image.carry_out(Write("log/2", 13, (b"er",)))
        waiting = files.is_synced("log")
        image.carry_out(SyncFile("log/2"))

        assert (waiting, files.is_synced("log")) == (False, True)


def test_a_lie_is_proven_by_the_second_sync_that_ends_well_behind_it() -> None:
    """The false sync is the first of the two syncs. A frame states the batch up to which the log was known to be
    synced.

    See docs/reference/specification.md#48-torn-tail-and-damage.
    """
    proven = ProvenBytes(DiskImage())
    proven.log_synced()
    seen = [proven.is_lie_proven]
    proven.lied()
    for _ in range(2):
        proven.log_synced()
        seen.append(proven.is_lie_proven)
    proven.forget_damage()

    assert seen == [False, False, True]
    assert not proven.is_lie_proven


def test_zeroes_written_ahead_and_what_is_written_over_them_are_not_proven_by_the_size_of_the_file() -> None:
    """The second frame is within the bytes that the first sync covered, but no later frame proves it."""
    first, second, ahead = b"f" * 100, b"s" * 60, bytes(10_000)
    hit: set[int] = set()
    for seed in SEEDS:
        image = DiskImage()
        path = f"{LOG_FOLDER}/00000001.wal"
        image.carry_out(MakeFolder(LOG_FOLDER))
        proven = ProvenBytes(image)
        for operations in ([CreateFile(path), Write(path, 0, (first, ahead))], [Write(path, 100, (second,))]):
            for operation in (*operations, SyncFile(path)):
                image.carry_out(operation)
            proven.log_synced()

        assert proven.rot(Random(seed))
        content = first + second + ahead[60:]
        hit.update(at for at, byte in enumerate(content) if image.file(path).current[at] != byte)

    assert 50 < len(hit) <= len(first)
    assert max(hit) < len(first)


def test_other_files_rot_too_and_the_rotten_one_is_known_until_another_takes_its_name() -> None:
    """The rot changes one bit of a snapshot or of a sealed file."""
    hit = set()
    for seed in SEEDS:
        image = DiskImage()
        image.carry_out(MakeFolder(SNAPSHOT_FOLDER))
        snapshots = [f"{SNAPSHOT_FOLDER}/{number}.snap" for number in (1, 2)]
        for path in (*snapshots, *SEALED_PATHS, f"{SNAPSHOT_FOLDER}/aside.tmp"):
            for operation in (CreateFile(path), Write(path, 0, (b"abc",)), SyncFile(path)):
                image.carry_out(operation)
        proven = ProvenBytes(image)

        assert proven.rot_elsewhere(Random(seed))
        path = proven.rotten_path
        hit.add(path)
        changed = bytes(a ^ b for a, b in zip(image.file(path).current, b"abc", strict=True))
        image.carry_out(Delete(path))
        image.carry_out(CreateFile(path))

        assert changed.count(0) == 2
        assert sum(changed).bit_count() == 1
        assert proven.rotten_path == ""

    assert hit == {*snapshots, *SEALED_PATHS}


class FoundLog:
    """The part of a `LogStore` that is read by the check of a recovery."""

    def __init__(self, entries: list[Entry]) -> None:
        self.entries = entries
        self.first_index, self.last_index = 1, len(entries)

    def term_runs(self) -> list[LogPosition]:
        return [LogPosition(1, 1)] if self.entries else []

    def read(self, first_index: int, last_index: int, bytes_max: int) -> list[Entry]:
        return self.entries[first_index - 1 : last_index]


def test_a_disk_that_lied_may_have_lost_entries_but_not_changed_one() -> None:
    """An entry with a correct checksum is the entry that was written, so damage can only remove entries."""
    entries = [Entry(index, 1, EntryKind.COMMANDS, encode_batch(index, [])) for index in (1, 2, 3)]
    logs, state = ShadowLogs("n1", SafetyChecker()), HardState(term=1)
    logs.append(LogWrite(sequence=1, hard_state=state, entries=tuple(entries)))
    logs.synced(1)

    def is_all(found: list[Entry]) -> bool:
        log: LogStore = FoundLog(found)  # type: ignore[assignment]
        return logs.are_all_in(log, state, LogPosition(0, 0))

    assert is_all(entries)
    assert not is_all(entries[:2])
    with pytest.raises(Violation, match="log matching"):
        is_all([*entries[:1], replace(entries[1], payload=encode_batch(9, []))])


@pytest.mark.parametrize(("count", "allowed"), [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2)])
def test_the_budget_of_damage_is_a_minority_and_one_damage_per_member(count: int, allowed: int) -> None:
    """A quorum of good copies always remains."""
    plan = replace(draw_plan(1), members=tuple(f"n{number}" for number in range(count)))
    disk = next(iter(plan.disks.values()))
    world = Simulation(replace(plan, disks=dict.fromkeys(plan.members, disk)))
    budget, members = DamageBudget(world), list(world.members.values())
    damaged = 0
    for member in members:
        if budget.allows(member):
            member.is_damaged, damaged = True, damaged + 1
            assert not budget.allows(member)

    assert damaged == allowed


def dense(seed: int) -> Plan:
    """The plan of a seed, shortened to two seconds, with a dozen additional disk faults."""
    plan, random = replace(draw_plan(seed), until_ns=2 * SECOND_NS), Random(seed)
    more = [
        Fault(
            at_ns=int(plan.until_ns * random.random()),
            kind=random.choice([kind for kind in DISK_KINDS if kind != LOSS]),  # A disk loss would use up the budget.
            duration_ns=int(2e8 * random.random()),
            target=None if random.random() < 0.5 else random.random(),
            shape=random.random(),
        )
        for _ in range(12)
    ]
    return replace(plan, faults=tuple(sorted((*plan.faults, *more), key=lambda fault: (fault.at_ns, fault.kind))))


MARKS = {
    "a member noticed a lying disk",
    "a member refused to start on a rotten log",
    "a member refused to start on a rotten snap",
    "a node stopped after a failed read",
    "a node stopped after a failed sync",
    "a write was lost",
    "a write was misdirected",
    "disk_full",
}


RICH_SEEDS = (19, 93, 98, 139, 143, 144, 153, 203, 204, 234, 245, 248, 274, 309)
"""Short runs. Each of them reaches several of these coverage marks, or a rare one. The marks of rotten files are rare,
because running members read only few files back."""


@pytest.mark.timeout(300)
def test_runs_full_of_disk_faults_hold_every_rule_and_reach_each_kind_of_damage() -> None:
    """If the damage stays within the budget, no data is lost and no wrong data is served. A member reports that its
    disk is damaged."""
    missing = MARKS.difference(run_all(map(dense, RICH_SEEDS)))

    run_until(missing, map(dense, range(1, 31)))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_more_runs_full_of_disk_faults_hold_every_rule() -> None:
    assert run_all(map(dense, range(1, 61))) >= MARKS


STOPPED_SEEDS = (1, 2, 3, 143, 144, 203)
"""Short runs in which a cluster stops if the budget of damage is not limited."""


@pytest.mark.timeout(120)
def test_beyond_the_budget_a_cluster_may_stop_but_says_nothing_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that finds damage does not start. So the quorum may be lost. In this case only the rule of liveness may
    be broken."""
    monkeypatch.setattr(DamageBudget, "allows", lambda _, member: not (member.is_damaged or member.is_lost))
    ends = []
    for seed in (*STOPPED_SEEDS, 4, 5, 7, 9, 98, 248):
        result = Simulation(dense(seed)).run()
        ends.append(result.violation.rule if result.violation is not None else None)

    assert set(ends) <= {None, "a healed cluster takes a write"}
    assert ends.count("a healed cluster takes a write") >= 3


def test_every_kind_of_sync_is_made_to_fail() -> None:
    """A sync of a file and a sync of a folder can both fail: for the log, for the snapshots, and in the main folder."""
    assert {(type(target), target.path) for target in FAILING_SYNCS} == {
        (kind, folder) for kind in (SyncFile, SyncFolder) for folder in (LOG_FOLDER, SNAPSHOT_FOLDER, "")
    }

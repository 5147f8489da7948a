"""One picture of a play: the logs and marks of all members, and the answers to all writers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from harness.core_host.node_host import NodeHost
from harness.scenarios.answers import answer
from harness.scenarios.cluster_stage import ClusterStage
from raft import Entry, EntryKind, Role, decode_item

NO_COMMAND = "·"
"""A new leader's first entry, which has no command."""

RUN_MIN = 3
"""At least this many single letters in a row are written as a range, as in A-D."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One entry of a member's log."""

    index: int
    term: int
    words: str
    is_durable: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One member. `mark` and `sees` are None while the member is down; `in_sync` is None while no leader knows whether
    the member is in sync."""

    node_id: str
    state: str  # The role of the member, or `down` or `paused`.
    term: int
    cells: tuple[Cell, ...]
    durable_index: int
    mark: int | None
    in_sync: bool | None
    sees: tuple[str, ...] | None  # The commands that a client can read at the member.


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of Raft and of Kafka as one leader knows them, as inclusive indexes."""

    leader_id: str
    ours: int  # The mark of Raft: the majority median.
    kafka: int | None  # Kafka's mark: the minimum over the members in sync; None if a log is not known.
    in_sync_ids: tuple[str, ...]
    unconfirmed_ids: tuple[str, ...]  # The members in sync that have not yet confirmed anything to this leader.
    # The limit `min_in_sync` if fewer voters are in sync, else None. Below the limit, the mark of Kafka 4.0 and later
    # does not rise.
    wanted_in_sync: int | None = None


@dataclass(frozen=True, slots=True)
class LogPicture:
    """The cluster at one moment.

    `answers`: (answer, words of the writes with this answer), in the order of the writes.
    """

    sentence: str
    rows: tuple[Row, ...]
    answers: tuple[tuple[str, tuple[str, ...]], ...]
    marks: Marks | None  # The marks of the leader; None while there is no leader.

    @property
    def last_index(self) -> int:
        """The last index of the longest log."""
        return max((len(row.cells) for row in self.rows), default=0)


def take_picture(stage: ClusterStage, sentence: str) -> LogPicture:
    """Return a picture of the stage as it is now."""
    marks = _marks(stage)
    rows = tuple(_row(node_id, stage, marks) for node_id in stage.ids)
    answered = [(answer(word, stage), word) for word in stage.writes]
    grouped = groupby(answered, key=lambda pair: pair[0])
    return LogPicture(sentence, rows, tuple((each, tuple(word for _, word in pairs)) for each, pairs in grouped), marks)


def _marks(stage: ClusterStage) -> Marks | None:
    leader_id = stage.leader()
    copies = None if leader_id is None else stage.members[leader_id].core.copies()
    if leader_id is None or copies is None:
        return None
    ours = stage.members[leader_id].core.commit_index
    unconfirmed = tuple(each for each, index in copies.positions if each in copies.in_sync_ids and ours > 0 == index)
    kafka = None if unconfirmed else copies.in_sync_index
    wanted = stage.min_in_sync if len(copies.in_sync_ids) < stage.min_in_sync else None
    return Marks(leader_id, ours, kafka, copies.in_sync_ids, unconfirmed, wanted)


def _row(node_id: str, stage: ClusterStage, marks: Marks | None) -> Row:
    member = stage.members[node_id]
    is_down = node_id in stage.down
    on_disk = member.disk.durable.entries
    entries = on_disk if is_down else member.disk.appended.entries
    # An entry that is cut or replaced in memory, but not yet on disk, does not count as durable.
    durable = sum(1 for old, new in zip(on_disk, entries, strict=False) if old == new)
    return Row(
        node_id=node_id,
        state="down" if is_down else "paused" if node_id in stage.paused else member.core.role.value,
        term=member.core.term,
        cells=tuple(Cell(each.index, each.term, _words(each), each.index <= durable) for each in entries),
        durable_index=durable,
        mark=None if is_down else member.core.commit_index,
        in_sync=None if marks is None else node_id in marks.in_sync_ids,
        sees=None if is_down else _seen(stage, node_id),
    )


def _seen(stage: ClusterStage, node_id: str) -> tuple[str, ...]:
    """Return the commands that a read at this member shows: the commands that its state machine has applied."""
    member = stage.members[node_id]
    if isinstance(member, NodeHost):
        return tuple(member.machine.words)
    return tuple(word for entry in member.applied for word in _commands(entry))


def _commands(entry: Entry) -> tuple[str, ...]:
    return tuple(map(str, decode_item(entry.payload)[1:])) if entry.kind is EntryKind.COMMANDS else ()


def _words(entry: Entry) -> str:
    return "+".join(_commands(entry)) or NO_COMMAND


def leads(row: Row) -> bool:
    """True if the member is up and leads."""
    return row.state == Role.LEADER.value


def ranges(words: Sequence[str]) -> str:
    """Return the words in one line, and consecutive letters as a range.

    >>> ranges(["A", "B", "C", "E", "F", "late"])
    'A-C, E, F, late'
    """
    runs: list[list[str]] = []
    for word in words:
        if runs and len(word) == len(runs[-1][-1]) == 1 and ord(word) == ord(runs[-1][-1]) + 1:
            runs[-1].append(word)
        else:
            runs.append([word])
    parts = [[f"{run[0]}-{run[-1]}"] if len(run) >= RUN_MIN else run for run in runs]
    return ", ".join(part for run in parts for part in run)

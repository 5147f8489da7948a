"""Checks some events that a node reports against the state of the simulated world.

The events are about appends that do not match the log or have no new entries, and about a disk that is full or hangs.
In the product only metrics and log messages depend on these events, so no other rule would notice a false event.
"""

from __future__ import annotations

from harness.sim.checks.context import CheckedWorld
from harness.sim.engine.errors import broken, require
from harness.sim.world.context import MachineView
from harness.sim.world.disk import BALLAST_PATH
from harness.sim.world.probes import LOG_FOLDER
from raft import AppendEntries, Message, TraceEvent


class NodeEventChecker:
    """Checks one process."""

    def __init__(self, world: CheckedWorld, member: MachineView) -> None:
        self._world, self._member = world, member
        self._append: AppendEntries | None = None  # The append that the node has received in this step.

    def received(self, message: Message) -> None:
        """Record a message that the node has received."""
        if isinstance(message, AppendEntries):
            self._append = message

    def step_is_over(self) -> None:
        """Record that all events of one step have been reported."""
        self._append = None

    def told(self, event: TraceEvent) -> None:
        """Check an event that the node reports."""
        match event.name:
            case "append_rejected":
                self._check_rejected(event.fields["prev_index"], event.fields["hint_index"], event.fields["hint_term"])
            case "duplicate_append_ignored":
                self._check_ignored()
            case "disk_full":
                self._check_full()
            case "disk_has_room":
                self._check_room()
            case "disk_hangs":
                self._check_hang(event.fields["for_ms"])
            case _:
                pass

    def _check_rejected(self, prev_index: int, hint_index: int, hint_term: int) -> None:
        """Check an append that the node rejects (Raft §5.3).

        The node must lack the entry that precedes the append's entries. The node must have the entry that the rejection
        suggests to the leader as the next position.
        """
        append, log = self._append, self._member.logs.memory
        if append is None or append.prev_index != prev_index or log.term_at(prev_index) == append.prev_term:
            broken(
                "an append is rejected only where the logs differ",
                f"{self._member.node_id} has term {log.term_at(prev_index)} at {prev_index} and rejects {append}",
            )
        if hint_index < log.base.index:
            return  # After the rejection, the same step installed a snapshot, so the log now begins at a later index.
        require(
            hint_index <= prev_index and log.term_at(hint_index) == hint_term,
            "a rejection names a position of the log",
            f"{self._member.node_id} rejects {prev_index}, names ({hint_index}, {hint_term})",
            f"and has term {log.term_at(hint_index)} there",
        )

    def _check_ignored(self) -> None:
        """Check that the log already has all entries of an append that the node ignores as a duplicate (Raft §5.3)."""
        append, log = self._append, self._member.logs.memory
        entries = () if append is None else append.entries
        new = [each for each in entries if each.index > log.base.index and log.term_at(each.index) != each.term]
        if new or not entries:
            broken(
                "a member ignores only entries that it holds",
                f"{self._member.node_id} ignores {append}, and lacks {new}",
            )

    def _check_full(self) -> None:
        files = self._member.files
        assert files is not None
        require(
            files.has_lacked_room,
            "a node reports missing room only after its disk has refused room",
            self._member.node_id,
        )

    def _check_room(self) -> None:
        """Check that the ballast has its full size again, and that all writes that waited for space are in the log.

        See docs/reference/specification.md#412-full-disk.
        """
        member = self._member
        assert member.files is not None
        inode = member.image.names.get(BALLAST_PATH)
        size_bytes, wanted_bytes = len(inode.current) if inode else 0, self._world.plan.storage.ballast_bytes
        require(
            size_bytes == wanted_bytes and not member.files.owes(LOG_FOLDER),
            "a member that has room again has its ballast and has written the waiting entries",
            f"{member.node_id}: the ballast has {size_bytes} of {wanted_bytes} bytes",
        )
        member.files.has_lacked_room = False

    def _check_hang(self, for_ms: int) -> None:
        files = self._member.files
        assert files is not None
        require(files.is_busy, "a disk hangs while it has something to do", f"{self._member.node_id}: {for_ms} ms")

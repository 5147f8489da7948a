"""The configurations of a run, which come from the written entries and not from the nodes (Raft §6, thesis §4)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from harness.sim.engine.errors import broken, require
from harness.sim.world.context import MachineView
from harness.sim.world.shadow_log import ShadowLog
from raft import Configuration, Entry, EntryKind, Node, Role

Halves = tuple[tuple[str, ...], ...]
"""The voters of each half of a configuration. A configuration that is not joint has one half."""


def halves_of(configuration: Configuration) -> Halves:
    """Return the sets of voters. A decision needs a majority of each set."""
    voters = configuration.voter_ids
    return (voters, configuration.outgoing_ids) if configuration.is_joint else (voters,)


def has_majorities(halves: Iterable[Collection[str]], who: Collection[str]) -> bool:
    """True if the members in `who` are a majority of each half."""
    return all(2 * sum(voter in who for voter in half) > len(half) for half in halves)


class ConfigurationHistory:
    """Every configuration that was ever written, and checks of the order of the committed configurations."""

    def __init__(self, founding: Configuration, is_committed: Callable[[int, int], bool]) -> None:
        self._founding, self._is_committed = founding, is_committed
        self._written: dict[tuple[int, int], Configuration] = {}  # The configuration in each entry, by (index, term).
        self._newest_first: list[tuple[int, int]] = []
        # The appended configurations that are not checked yet: (leader, index, term).
        self.fresh: list[tuple[str, int, int]] = []
        self.committed = founding  # The newest configuration that any member has committed.
        self.promised_at = (
            0  # If leases are in use, a member that has acknowledged the log up to this index knows its lease promise.
        )
        self.low_watermark_max = 0  # The highest low-water mark that any leader has sent.

    @property
    def has_changes(self) -> bool:
        """True once any member has written a configuration."""
        return bool(self._written)

    def wrote(self, node_id: str, entry: Entry) -> None:
        """Record an entry that the leader of its term writes for the first time."""
        if entry.kind is EntryKind.CONFIGURATION:
            self._written[entry.index, entry.term] = Configuration.decode(entry.payload)
            self._newest_first = sorted(self._written, reverse=True)
            self.fresh.append((node_id, entry.index, entry.term))

    @property
    def ever(self) -> frozenset[str]:
        """The ids of all members that any configuration names."""
        everybody = (self._founding, *self._written.values())
        return frozenset(member.node_id for configuration in everybody for member in configuration.members)

    def that_may_be_in_force(self, commit_index: int) -> list[Configuration]:
        """Return the newest committed configuration, and all configurations written at indexes above `commit_index`."""
        return [self.committed, *(made for (index, _), made in self._written.items() if index > commit_index)]

    def is_written(self, index: int, term: int) -> bool:
        """True if the entry (index, term) is a configuration."""
        return (index, term) in self._written

    def in_force(self, log: ShadowLog, last_index: int | None = None) -> Configuration:
        """The newest configuration in `log`, or in its part up to `last_index`."""
        key = self._newest(log, log.last_index if last_index is None else last_index)
        return self._founding if key is None else self._written[key]

    def _newest(self, log: ShadowLog, last_index: int) -> tuple[int, int] | None:
        for index, term in self._newest_first:
            if index > last_index:
                continue
            held = self._is_committed(index, term) if index <= log.base.index else log.term_at(index) == term
            if held:
                return index, term
        return None

    def check_fresh(self, node_id: str, log: ShadowLog, commit_index: int, committed_term: int) -> None:
        """Check the configurations that this leader has appended.

        Only one change at a time is allowed, and no change before the leader has committed an entry of its own term.
        """
        for _, index, term in [each for each in self.fresh if each[0] == node_id]:
            before = self._newest(log, index - 1)
            require(
                before is None or before[0] <= commit_index,
                "one change of the members at a time",
                f"{node_id} changes them at {index}, and {before} is not committed: its mark is {commit_index}",
            )
            require(
                committed_term == term,
                "members change behind a commit of the leader's own term",
                f"{node_id} changes them at {index} in term {term}; ({commit_index}, {committed_term}) is committed",
            )
        self.fresh = [each for each in self.fresh if each[0] != node_id]

    def reached(self, index: int, term: int) -> None:
        """Record that the entry (index, term) is committed. If it is a configuration, check it against the previous
        configuration.

        Configurations that follow each other share majorities (Raft §6).
        """
        new = self._written.get((index, term))
        if new is None:
            return
        old, self.committed = self.committed, new
        if new.lease_ns and not old.lease_ns:
            self.promised_at = index
        if old.is_joint:
            shares = not new.is_joint and new.voter_ids == old.voter_ids
        elif new.is_joint:
            shares = new.outgoing_ids == old.voter_ids
        else:
            shares = new.voter_ids == old.voter_ids
        require(shares, "configurations that follow each other share majorities", f"{old} → {new} at {index}")
        back = {member.node_id for member in new.members} & {*old.removed}
        require(not back, "an id is never used again", sorted(back), "at", index)


def check_standing(history: ConfigurationHistory, machine: MachineView, node: Node) -> None:
    """Check the configuration and the role of a member.

    The node must use the newest configuration in its log. A member is certainly not a voter if it is not a voter in the
    newest configuration that it knows to be committed. Such a member must neither campaign nor lead.
    """
    log = machine.logs.memory
    # A failed node is not checked, because it may have ended in the middle of a step.
    if not history.has_changes or node.failure is not None:
        return
    members = history.in_force(log)
    # `require` is not used here: this check runs after every event, and building the text takes 80 µs.
    if node.core.configuration != members:
        broken(
            "the newest configuration in the log is in force",
            f"{machine.node_id} has {node.core.configuration}, its log {members}",
        )
    if node.core.role is not Role.FOLLOWER and not members.is_voter(machine.node_id):
        certain = history.in_force(log, node.core.commit_index)
        require(
            certain.is_voter(machine.node_id),
            "a member that is certainly no voter neither campaigns nor leads",
            f"{machine.node_id} is {node.core.role.value}, and the members are {certain}",
        )

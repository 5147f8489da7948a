"""The coverage points that a campaign of CAMPAIGN_SEEDS_MIN seeds must hit, because an untested rule proves nothing.

Most coverage points are names of trace events or of faults, or are reported by other parts of the simulator.
`CoverageTracker` recognises the points that depend on more than the name of one trace event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise

from harness.sim.checks.access import coverage as access
from harness.sim.checks.acknowledgements import fates, levels, responses
from harness.sim.checks.context import CheckedWorld
from harness.sim.checks.leader_loss import BEGAN_AN_ELECTION, WAS_WRONG
from harness.sim.checks.machine import READ_BACK
from harness.sim.plan.plan import KINDS
from harness.sim.world.context import MachineView
from harness.sim.world.peer_connections import HUNG_UP, NO_WAY, PAUSED
from harness.sim.world.probes import LONE_PUTS
from raft import Effects, InstallSnapshot, Node, ReadsReady, TraceEvent

CAMPAIGN_SEEDS_MIN = 1_000
"""A wanted point that was never hit fails a campaign of this many seeds or more. A smaller campaign only lists it."""

OFTEN, SELDOM, RARE = 20, 100, 300
"""Wanted frequencies of coverage points: a number n means that at least one of n seeds hits the point.

A point that is hit less often is shown as rare. Only a point that is never hit fails the campaign.
"""

GHOST_ENDED = "a ghost ended itself"
TOLD_BY_REFUSAL = "a removed member learned of its removal by a refusal"
HASTY = "a spare was added as soon as a ghost was refused"
NAMED = "a new voter was named with its folder"
PIN_GAVE_WAY = "a pin gave way to another data folder"

INSTALLED = "a snapshot was installed beneath a watch"
RESTARTED = "a member was restarted while it served watches"
STRUCK = "the leader was struck as a lease expired"

FIGURE_8 = "figure 8: an entry on a majority, not committed, was overwritten"
SILENCE = "a leader stepped down: its quorum is silent"
PRE_VOTE = "a pre-vote was refused: a leader is heard"
SPLIT = "an election was split"
ABANDONED = "a read round was abandoned"
WHILE_WRITING = "a snapshot was installed while writes went on"
INTERRUPTED = "a snapshot was installed after an interrupted transfer"
ROLLED_BACK = "a configuration was rolled back"
OUTLIVED = "a joint configuration outlived its leader"
TOLD = "a removed member learned that it is one"

WANTED: dict[str, int] = {
    **dict.fromkeys(KINDS, SELDOM),
    "truncated": OFTEN,
    "stepped_down": OFTEN,
    "snapshot_installed": OFTEN,
    "compacted": OFTEN,
    "append_rejected": OFTEN,
    "duplicate_append_ignored": OFTEN,
    "a retry found its result in the session": OFTEN,
    "a crash lost un-synced writes": OFTEN,
    "a crash kept un-synced writes": OFTEN,
    "un-synced bytes cut short": SELDOM,
    "un-synced sectors mixed": SELDOM,
    "a torn tail was cut": SELDOM,
    "disk_full": SELDOM,
    "disk_has_room": SELDOM,
    "a node stopped after a failed sync": SELDOM,
    "a node stopped after a failed read": SELDOM,
    "a member refused to start on a rotten log": SELDOM,
    "the log rotted in use": SELDOM,
    READ_BACK: SELDOM,
    "a member refused to start on a rotten snap": RARE,
    "a member noticed a lying disk": RARE,
    "a write was lost": SELDOM,
    "a write was misdirected": SELDOM,
    "a half-open connection was replaced": SELDOM,
    "a member started from short reads": SELDOM,
    "a disk was lost": SELDOM,
    "a member refused to start on an empty disk": SELDOM,
    "a hello was refused: wrong_incarnation": SELDOM,
    "a member that lost its disk was replaced": SELDOM,
    GHOST_ENDED: SELDOM,
    HASTY: RARE,
    PIN_GAVE_WAY: SELDOM,
    TOLD_BY_REFUSAL: SELDOM,
    LONE_PUTS: SELDOM,
    "a slow process was behind": SELDOM,
    "clients were left with a leader without a quorum": SELDOM,
    SILENCE: OFTEN,
    PRE_VOTE: OFTEN,
    SPLIT: OFTEN,
    ABANDONED: SELDOM,
    BEGAN_AN_ELECTION: SELDOM,
    WAS_WRONG: SELDOM,
    WHILE_WRITING: SELDOM,
    INTERRUPTED: SELDOM,
    "a snapshot overtook entries that waited to be applied": RARE,
    "died amid an install": RARE,
    "transfer_given_up": RARE,
    "disk_hangs": RARE,
    "leadership was transferred": OFTEN,
    "a member stopped in order": OFTEN,
    "a session expired": SELDOM,
    "a request came after it was closed": RARE,
    "a member came back: kill": SELDOM,
    "members came back to a calm quorum": SELDOM,
    FIGURE_8: RARE,
    "a read was let through: lease": OFTEN,
    "a read was let through: asked": OFTEN,
    "a read was let through: bounded": OFTEN,
    "a change ended: Applied": OFTEN,
    "a change was refused: behind": SELDOM,
    "a change was refused: used_id": RARE,
    "learners were promoted after the faults": SELDOM,
    "a hello was refused: removed": SELDOM,
    "a leader began to remove itself": SELDOM,
    ROLLED_BACK: RARE,
    NAMED: SELDOM,
    HUNG_UP: SELDOM,
    NO_WAY: SELDOM,
    PAUSED: SELDOM,
    OUTLIVED: SELDOM,
    TOLD: SELDOM,
    "level 2 is in force": SELDOM,
    "a level was refused: silent_member": SELDOM,
    "a level was refused: old_member": RARE,
    "nothing prevented a level after the faults": SELDOM,
    "a hello was refused: feature_level": RARE,
    "a member stopped at a level that its build does not know": SELDOM,
    "a member was taken back while a level was raised": RARE,
    "answered revision_compacted": SELDOM,
    "answered revision_ahead": SELDOM,
    "a client closed its session": SELDOM,
    "a client left its session open": SELDOM,
    "the coordination load began": SELDOM,
    "a lease expired": SELDOM,
    "a lease was revoked": SELDOM,
    "a lease expired by clocks that keep to their bound": SELDOM,
    "a renewal came after the end of its lease": SELDOM,
    "a lock was obtained": SELDOM,
    "a lock passed on": SELDOM,
    "a command was refused: too_many_keys": RARE,
    "a command was refused: lease_is_full": RARE,
    "a guarded write was refused": RARE,
    "a guarded write was refused after its lease had expired": RARE,
    "a watch went on at another member": SELDOM,
    "a watch was cancelled by a compaction": SELDOM,
    "a watch that was not read went on": SELDOM,
    "a watch began ahead of its member": SELDOM,
    "a large revision came in parts": RARE,
    INSTALLED: RARE,
    RESTARTED: SELDOM,
    STRUCK: SELDOM,
    "a member was read at an old revision": SELDOM,
    "a client read an old revision": SELDOM,
    "in_sync_left": OFTEN,
    "in_sync_joined": OFTEN,
    levels.WAITED: OFTEN,
    levels.LEFT: SELDOM,
    levels.JOINT: RARE,
    levels.DEPOSED: SELDOM,
    responses.UNDER_REPLICATED: SELDOM,
    responses.REFUSED: SELDOM,
    access.CHANGED: SELDOM,
    access.SWITCHED_OFF: SELDOM,
    access.OUTDATED: SELDOM,
    access.DENIED: SELDOM,
    access.BEHIND: SELDOM,
    access.WATCH_DENIED: SELDOM,
    access.NOT_LET_IN: SELDOM,
    fates.COMMITTED_TOLD: SELDOM,
    fates.LOST_TOLD: RARE,
    fates.LOST: SELDOM,
}
"""The wanted coverage points, each with a number n: at least one of n seeds should hit the point."""


WANTED_OF_ETCD: dict[str, int] = {
    "the etcd clients began": OFTEN,
    "an etcd client's call took the fast path": OFTEN,
    "an etcd client swapped a value": OFTEN,
    "an etcd client was told a change": OFTEN,
    "an etcd client resumed a watch": OFTEN,
    "an etcd client renewed a lease": SELDOM,
    "an etcd client lost a lease": SELDOM,
    "an etcd client compacted the history": SELDOM,
    "an etcd client got a lock": OFTEN,
    "an etcd client lost its lease in the line for a lock": SELDOM,
    "an etcd call failed: 4": OFTEN,
    "an etcd call failed: 8": SELDOM,
    "an etcd call failed: 14": OFTEN,
    "a put of an etcd client named a lease that has ended": SELDOM,
    "a port had not reached a revision": SELDOM,
    "a port refused a compacted revision": RARE,
    "a member ended an etcd client's stream of watches": OFTEN,
    "a watch of an etcd client was cancelled by a compaction": SELDOM,
    "a retry found its result in the session": OFTEN,
    "a lease expired": SELDOM,
    "a lease was revoked": SELDOM,
}
"""The wanted coverage points of a campaign in which every seed has clients of etcd."""


def never(covered: Counter[str], wanted: Mapping[str, int] = WANTED) -> list[str]:
    """Return the wanted coverage points that were never hit."""
    return sorted(point for point in wanted if not covered[point])


def is_too_rare(point: str, hits: int, seeds: int, wanted: Mapping[str, int] = WANTED) -> bool:
    """True if a wanted coverage point was hit less often than it should be."""
    return point in wanted and hits * wanted[point] < seeds


class CoverageTracker:
    """Covers the points that each event of a run hits. The tracker never fails a run."""

    def __init__(self, world: CheckedWorld) -> None:
        self._world = world
        self._candidates: dict[int, set[str]] = {}  # The candidates of each term.
        self._led: set[int] = set()  # Terms that had a leader.
        self._handed_over: set[int] = set()  # Terms for which a leader had asked a peer to campaign.
        self._transfers: dict[str, set[tuple[str, int]]] = {}  # Snapshot transfers since each member's last install.
        # The members that have begun a read round, as leaders, since they last answered reads.
        self._reading: set[str] = set()

    def look(self, member: MachineView, node: Node, message: object, effects: Effects) -> None:
        """Inspect one event on one member, before the disk carries out the operations that the event requests."""
        if isinstance(message, InstallSnapshot):
            self._transfers.setdefault(member.node_id, set()).add((node.core.leader_id or "", message.transfer_id))
        names = [event.name for event in effects.events]
        if ("truncated", "members_changed") in pairwise(names):
            self._world.cover(ROLLED_BACK)
        for event in effects.events:
            self._look_at(member, node, event)
        if self._reading and any(isinstance(completion, ReadsReady) for completion in effects.completions):
            self._reading.discard(member.node_id)

    def _look_at(self, member: MachineView, node: Node, event: TraceEvent) -> None:
        cover, fields, core = self._world.cover, event.fields, node.core
        match event.name:
            case "truncated" if self._is_on_a_majority(fields["from_index"], fields["removed_term"]):
                cover(FIGURE_8)
            case "stepped_down":
                if fields["reason"] == "its quorum is silent":
                    cover(SILENCE)
                if member.node_id in self._reading:
                    cover(ABANDONED)
            case "vote_refused" if fields["pre_vote"] and fields["reason"] == "a leader is heard":
                cover(PRE_VOTE)
            case "became_leader":
                self._led.add(core.term)
                if core.configuration.is_joint:
                    cover(OUTLIVED)
                self._reading.discard(member.node_id)
                if core.term in self._handed_over:
                    cover("leadership was transferred")
            case "members_committed" if fields["removed"]:
                cover(TOLD)
            case "became_candidate":
                if fields["transfer"]:
                    self._handed_over.add(core.term)
                self._stand(member.node_id, core.term)
            case "read_round":
                self._reading.add(member.node_id)
            case "snapshot_installed":
                if self._world.safety.commit_index > fields["index"]:
                    cover(WHILE_WRITING)
                if len(self._transfers.pop(member.node_id, ())) > 1:
                    cover(INTERRUPTED)

    def _stand(self, node_id: str, term: int) -> None:
        """Record a candidate, and cover a split election (Raft §5.2).

        An election was split if its term never had a leader, two members were candidates in this term, and a candidate
        of a later term appears.
        """
        self._candidates.setdefault(term, set()).add(node_id)
        earlier = [len(who) for old, who in self._candidates.items() if old < term and old not in self._led]
        if earlier and max(earlier) > 1:
            self._world.cover(SPLIT)

    def _is_on_a_majority(self, index: int, term: int) -> bool:
        """True if an entry that is being cut is durable on a majority (Raft §5.4.2, figure 8).

        Another rule checks that no committed entry is cut, so this entry is uncommitted. Copies of an uncommitted entry
        disappear only by cuts, so all copies still exist at the first cut.
        """
        members = self._world.members.values()
        holders = sum(other.logs.durable.term_at(index) == term for other in members)
        return 2 * holders > len(members)

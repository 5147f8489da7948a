"""The bounds of the small world, and the features that the small world leaves out."""

from __future__ import annotations

from dataclasses import dataclass

MEMBERS_MAX = 5
"""Five members already have 120 renamings (`symmetry`). With more members, a search would not get far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The most events of each kind on one path. `entries` counts commands, but not the no_op of each new leader."""

    members: int = 3
    terms: int = 2
    entries: int = 2
    crashes: int = 1
    # The most messages in flight. Further messages are lost, and the search explores every choice of lost messages.
    in_flight: int = 2
    duplicates: int = 0  # Deliveries after which the message is still in flight, so that it can arrive again.
    reads: int = 0  # Linearizable reads.
    depth: int | None = None  # The most events of all kinds.
    seconds: float | None = None
    states: int | None = None
    # How often a follower may get the (true or false) hint that its connections with the leader have ended.
    hints: int = 0
    # Heartbeats of leaders. After a loss, a heartbeat makes the leader send the lost entries again.
    heartbeats: int = 0
    pre_votes: bool = False  # True: pre-votes are messages. False: every pre-vote is granted at once.
    # True: the search begins with a leader of term 1, whose first entry is committed on all members.
    elected: bool = False
    symmetry: bool = True

    def words(self) -> str:
        """Return the bounds as one line of text."""
        counts = ("members", "terms", "entries", "crashes", "in_flight", "heartbeats", "duplicates", "reads", "hints")
        words = ", ".join(f"{getattr(self, name)} {name.replace('_', ' ')}" for name in counts)
        return words + (", begun with a settled leader of term 1" if self.elected else "")


EXPLORED = (
    "deliveries in every order; a message that never arrives is lost",
    "every choice of lost messages, wherever more messages would be in flight than the bound allows",
    "time-outs, heartbeats, and leaders who lose their quorum, at any moment that the terms allow",
    "each write to a disk as a step of its own: the core continues before the write is durable",
    "crashes at any moment, each of which keeps some prefix of the unsynced data; the member starts again at once",
)

LEFT_OUT = (
    "the node around the core (group commit, sessions), the real log, snapshots and compaction: the simulator has them",
    "the low-water mark, outcomes of proposals, and leader time, which stands still",
    "pre-votes: without --pre-votes they are granted at once (all possible candidates are included, and some others)",
    "refusals of campaigns while a leader is heard: here no leader was heard recently (so more can happen); leases",
    "a slow state machine: an entry that is committed and durable is applied at once",
    "identical messages in flight, which count as one message; damaged disks; bounds in bytes",
    "everything that needs more than the bounds",
)
"""The parts that the search leaves out. Every result shows them, so that a bounded proof is not taken for a full one.
"""

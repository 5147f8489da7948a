"""Whether the own disk hangs: a leader whose syncs do not end hands over instead of holding everybody.

With followers that sync, entries are committed without the leader's disk, but it answers nobody before they are
durable here too, and its heartbeats keep the others from replacing it. A disk can hang for as long as it likes and
say nothing, so there is only one thing to go by: how long the sync that is under way has been so.
"""

from __future__ import annotations

from contextlib import suppress

from raft.config import MILLISECOND_NS, RaftConfig
from raft.core import RaftCore
from raft.errors import TransferRefused
from raft.group_commit import GroupCommit
from raft.ready import TraceEvent

HANG_TIMEOUTS = 2
"""Election time-outs that one sync may take. A stall that is shorter than a change of the leader is waited out."""


class DiskWatch:
    """Looks at the log's syncs of one node, at each tick in which one is under way."""

    def __init__(self, config: RaftConfig, core: RaftCore, commit: GroupCommit) -> None:
        self._core, self._commit = core, commit
        self._patience_ns = HANG_TIMEOUTS * config.election_timeout_max_ns
        self._hung_since: int | None = None  # Monotonic ns: when the sync that took, or takes, too long began.
        self._ask_again_at = 0  # Monotonic ns: until then it is no reason to hand over once more.

    @property
    def hangs(self) -> bool:
        """True while a sync has been under way for longer than HANG_TIMEOUTS election time-outs."""
        return self._hung_since is not None

    def look(self, now: int, *, is_full: bool, events: list[TraceEvent]) -> None:
        """It is `now` (monotonic ns). What is to be told goes into `events`; the core may be told to hand over.

        A write that waits for room on a full disk is no hang: whoever looks for the room knows of it.

        Only somebody who has the whole log durably is asked to take over (`hand_over` sees to it), so that disks which
        hang together pass nothing around. Where that does not work it is tried again after as long a time.
        """
        began, commit = self._hung_since, self._commit
        if began is not None and not (commit.under_way and commit.began_at == began):
            self._hung_since = None
            events.append(TraceEvent("disk_answers", {"after_ms": (now - began) // MILLISECOND_NS}))
        if not commit.under_way or is_full or now - commit.began_at < self._patience_ns:
            return
        if self._hung_since is None:
            self._hung_since = commit.began_at
            events.append(TraceEvent("disk_hangs", {"for_ms": (now - commit.began_at) // MILLISECOND_NS}))
        if self._core.leading_term is not None and now >= self._ask_again_at:
            self._ask_again_at = now + self._patience_ns
            with suppress(TransferRefused):  # Nobody can, or it is being handed over already.
                self._core.transfer_leadership()

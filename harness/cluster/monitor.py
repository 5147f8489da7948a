"""Polls the status of all members of a cluster: the leader, the term, and the indexes of each member."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import trio

from harness.recording.history import RunWriter
from kvstore import MemberStatus

POLL_SECONDS = 0.1
_ANSWER_SECONDS = 0.4  # A member that does not answer within this time counts as silent.
# The time for an answer with the state hash. The member needs more time, because it hashes its whole state.
_HASH_SECONDS = 5.0
_FRESH_SECONDS = 1.0  # An answer that claims to lead is valid for this long.


class Probe(Protocol):
    """Asks one member for its status; `status` returns None if the member does not answer in time."""

    async def status(self, node_id: str, *, timeout_seconds: float, with_hash: bool = False) -> MemberStatus | None: ...


class Monitor:
    """Polls all members and records leader changes as events.

    `views`: by node id, the latest status of each member; silent members are missing.
    """

    def __init__(self, node_ids: Sequence[str], probe: Probe) -> None:
        self.views: dict[str, MemberStatus] = {}
        self._heard_at: dict[str, float] = {}  # trio time
        self.leader_changes = 0
        self._node_ids, self._probe = list(node_ids), probe
        self._begin: Callable[[str], None] | None = None
        self._last_leader: tuple[int, str] | None = None  # The last recorded leader: (term, node_id).

    @property
    def leader_id(self) -> str | None:
        """The member that claims to lead in the highest term; None if no member has recently claimed to lead."""
        oldest = trio.current_time() - _FRESH_SECONDS
        leading = [
            view for view in self.views.values() if view.role == "leader" and self._heard_at[view.node_id] >= oldest
        ]
        return max(leading, key=lambda view: view.term).node_id if leading else None

    @property
    def term(self) -> int:
        return max((view.term for view in self.views.values()), default=0)

    async def run(self, writer: RunWriter) -> None:
        """Poll until cancelled.

        A separate task polls each member, so that a silent member does not delay the polls of the others.
        """
        async with trio.open_nursery() as nursery:
            self._begin = lambda node_id: nursery.start_soon(self._watch, node_id, writer)
            for node_id in self._node_ids:
                self._begin(node_id)

    def add(self, node_id: str) -> None:
        """Watch a new member."""
        self._node_ids.append(node_id)
        if self._begin is not None:
            self._begin(node_id)

    def forget(self, node_id: str) -> None:
        """Stop watching a removed member."""
        self._node_ids.remove(node_id)
        self.views.pop(node_id, None)

    async def look(self, *, with_hash: bool = False) -> Mapping[str, MemberStatus]:
        """Request the status of all members once. Returns the answers by node id; silent members are missing."""
        found: dict[str, MemberStatus] = {}
        timeout_seconds = _HASH_SECONDS if with_hash else _ANSWER_SECONDS

        async def ask(node_id: str) -> None:
            view = await self._probe.status(node_id, timeout_seconds=timeout_seconds, with_hash=with_hash)
            if view is not None:
                found[node_id] = view

        async with trio.open_nursery() as nursery:
            for node_id in self._node_ids:
                nursery.start_soon(ask, node_id)
        return found

    async def _watch(self, node_id: str, writer: RunWriter) -> None:
        while node_id in self._node_ids:
            view = await self._probe.status(node_id, timeout_seconds=_ANSWER_SECONDS)
            if node_id not in self._node_ids:
                return
            before = self.views.pop(node_id, None)
            if view is not None:
                self.views[node_id] = view
                self._heard_at[node_id] = trio.current_time()
                self._note_leader(view, writer)
            _note_member(node_id, before, view, writer)
            await trio.sleep(POLL_SECONDS)

    def _note_leader(self, view: MemberStatus, writer: RunWriter) -> None:
        """Record a new leader if its term is higher than the last leader's.

        So a deposed leader that still claims to lead is not recorded as a new leader.
        """
        if view.role != "leader" or (self._last_leader is not None and view.term <= self._last_leader[0]):
            return
        if self._last_leader is not None:
            self.leader_changes += 1
        self._last_leader = (view.term, view.node_id)
        writer.event("leader_changed", leader_id=view.node_id, term=view.term)


def _note_member(node_id: str, before: MemberStatus | None, now: MemberStatus | None, writer: RunWriter) -> None:
    """Record an event if the member has become silent, or if the role, term or leader in its status has changed."""
    if now is None:
        if before is not None:
            writer.event("member_silent", node_id=node_id)
    elif before is None or (before.role, before.term, before.leader_id) != (now.role, now.term, now.leader_id):
        marks = {"last_index": now.last_index, "commit_index": now.commit_index, "last_applied": now.last_applied}
        writer.event("member", node_id=node_id, role=now.role, term=now.term, leader_id=now.leader_id, **marks)

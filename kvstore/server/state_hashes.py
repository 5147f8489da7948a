"""Hashes of a member's state, for comparisons of members: computed in slices, one at a time, beside other work.

A response shows the member at the moment of its hash, which is not before the request. While the state stays the same,
the last hash is the response.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from kvstore.protocol.status import MemberStatus
from kvstore.store.digest import StateHashing
from kvstore.store.machine import KvMachine
from raft import Busy, Node

WAITING_MAX = 64
"""Requests that wait for a hash, on all connections together."""

WAITING_PER_CONNECTION_MAX = 4
"""So that one connection cannot take all places. A client asks once at a time."""


class WaitingRequest(NamedTuple):
    """A request that waits for a hash."""

    connection_id: int
    request_id: int


class StateHashes:
    """The hashes of one member."""

    def __init__(
        self,
        node: Node,
        machine: KvMachine,
        status: Callable[[], MemberStatus],
        answer: Callable[[WaitingRequest, MemberStatus], None],
    ) -> None:
        """`status` says how the member is, without a hash. `answer` is called for each request that `wait` took, in
        order, but for those that were forgotten."""
        self._node, self._machine, self._take_status, self._answer = node, machine, status, answer
        self._hashing: StateHashing | None = None
        self._status: MemberStatus | None = None  # As it was when `_hashing` began.
        self._served: list[WaitingRequest] = []  # Wait for `_hashing`.
        self._next: list[WaitingRequest] = []  # Came when the state had moved on: they wait for the one after it.
        self._index, self._hash = -1, b""  # The last hash, and the index of its state.

    @property
    def waiting(self) -> list[WaitingRequest]:
        """All that wait."""
        return self._served + self._next

    @property
    def is_under_way(self) -> bool:
        """True while `step` has something to do."""
        return self._hashing is not None

    def known(self) -> MemberStatus | None:
        """This member with the hash of its state, if that is known without a walk; else None."""
        if self._index != self._node.core.last_applied:
            return None
        return replace(self._take_status(), state_hash=self._hash)

    def wait(self, request: WaitingRequest) -> None:
        """Have `answer` called for this request once the hash is there. Raises Busy at a bound."""
        waiting = self.waiting
        if len(waiting) >= WAITING_MAX:
            raise Busy("requests that wait for the state hash", WAITING_MAX)
        if sum(each.connection_id == request.connection_id for each in waiting) >= WAITING_PER_CONNECTION_MAX:
            raise Busy("requests of one connection that wait for the state hash", WAITING_PER_CONNECTION_MAX)
        if self._status is not None and self._status.last_applied == self._node.core.last_applied:
            self._served.append(request)
            return
        self._next.append(request)
        if self._hashing is None:
            self._begin()

    def forget(self, connection_id: int) -> None:
        """No request of this connection waits any more. A hash under way goes on, for later requests."""
        if self._hashing is not None:
            self._served = [each for each in self._served if each.connection_id != connection_id]
            self._next = [each for each in self._next if each.connection_id != connection_id]

    def step(self) -> None:
        """One slice of the hash that is under way."""
        hashing, status = self._hashing, self._status
        assert hashing is not None
        assert status is not None
        if hashing.step():
            return
        self._index, self._hash = status.last_applied, hashing.result
        served, self._served = self._served, []
        self._hashing = self._status = None
        for request in served:
            self._answer(request, replace(status, state_hash=hashing.result))
        if self._next:
            self._begin()

    def _begin(self) -> None:
        self._status = self._take_status()
        self._hashing = self._machine.begin_state_hash()
        self._served, self._next = self._next, []

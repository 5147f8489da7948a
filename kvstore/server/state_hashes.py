"""Hashes of a member's state, to compare members. One hash at a time is computed, in slices, between other work.

The hash in a response is never older than the request. While the state does not change, the last hash is reused.
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
"""The greatest number of requests that wait for a hash, on all connections together."""

WAITING_PER_CONNECTION_MAX = 4
"""The greatest number of waiting requests of one connection, so that one connection cannot block the others. A client
of this project requests one hash at a time."""


class WaitingRequest(NamedTuple):
    """A request that waits for a hash."""

    connection_id: int
    request_id: int


class StateHashes:
    """Computes the state hashes of one member, and answers the requests for them."""

    def __init__(
        self,
        node: Node,
        machine: KvMachine,
        status: Callable[[], MemberStatus],
        answer: Callable[[WaitingRequest, MemberStatus], None],
    ) -> None:
        """`status` returns the member's status without a hash. `answer` is called for each request given to `wait`, in
        order, unless the request was removed."""
        self._node, self._machine, self._take_status, self._answer = node, machine, status, answer
        self._hashing: StateHashing | None = None
        self._status: MemberStatus | None = None  # The status when `_hashing` began.
        self._served: list[WaitingRequest] = []  # Requests that wait for `_hashing`.
        self._next: list[WaitingRequest] = []  # Requests that need a newer state than the state of `_hashing`.
        self._index, self._hash = -1, b""  # The last hash, and the index of its state.

    @property
    def waiting(self) -> list[WaitingRequest]:
        """All waiting requests."""
        return self._served + self._next

    @property
    def is_under_way(self) -> bool:
        """True while a hash is being computed, so that `step` has work."""
        return self._hashing is not None

    def known(self) -> MemberStatus | None:
        """Return the status of this member with the hash of its present state; None if this hash is not known yet."""
        if self._index != self._node.core.last_applied:
            return None
        return replace(self._take_status(), state_hash=self._hash)

    def wait(self, request: WaitingRequest) -> None:
        """Register a request. `answer` is called for the request once the hash is known. Raises Busy at a bound."""
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
        """Remove the requests of this connection. A hash that is being computed is completed for later requests."""
        if self._hashing is not None:
            self._served = [each for each in self._served if each.connection_id != connection_id]
            self._next = [each for each in self._next if each.connection_id != connection_id]

    def step(self) -> None:
        """Compute one slice of the hash that is under way."""
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

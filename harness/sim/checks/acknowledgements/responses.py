"""Checks the responses of members to requests with an acknowledgement level, in the bytes of the connections.

The checker decodes the bytes itself, so it also checks responses that the client would not report.

See docs/reference/specification.md#711-responses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cbor2

from harness.sim.engine.errors import require
from harness.sim.world.context import MachineView
from kvstore import Code, RequestKind
from raft import FRAME_BYTES_MAX_CLIENT, Acknowledge, FrameSplitter

UNDER_REPLICATED = "an answer said that too few members hold a write"
REFUSED = "a write was refused: too few members in sync"


class _Direction:
    """The frames of one direction of one connection. The first frame is the hello."""

    def __init__(self) -> None:
        self._splitter, self._is_greeted = FrameSplitter(FRAME_BYTES_MAX_CLIENT), False

    def items(self, data: bytes) -> list[Sequence[Any]]:
        """Return the requests or responses whose last byte is in `data`."""
        bodies = list(self._splitter.feed(data))
        if bodies and not self._is_greeted:
            self._is_greeted = True
            del bodies[0]
        found = [cbor2.loads(bytes(body)) for body in bodies]
        return [item for item in found if isinstance(item, list) and len(item) > 1]


class ResponseChecker:
    """Checks all connections of a run. The id of a connection is the id that its member uses."""

    def __init__(self, cover: Callable[[str], None]) -> None:
        self._cover = cover
        self._directions: dict[tuple[int, bool], _Direction] = {}
        # The level of each open request, by connection and request id. Requests of level NONE stay open.
        self._levels: dict[tuple[int, int], int] = {}

    def received(self, connection_id: int, data: bytes) -> None:
        """Record the requests in bytes that a member receives."""
        for request_id, kind, *rest in self._items(connection_id, data, is_response=False):
            if kind == RequestKind.ACKNOWLEDGED:
                self._levels[connection_id, request_id] = rest[0]

    def sent(self, member: MachineView, connection_id: int, data: bytes) -> None:
        """Check bytes that a member sends in answer to requests."""
        for request_id, code, *rest in self._items(connection_id, data, is_response=True):
            level = self._levels.get((connection_id, request_id))
            if level is None:
                continue
            words = f"{member.node_id} responds to request {request_id} of level {level}: {code} {rest}"
            require(level != Acknowledge.NONE, "nobody responds to a request of level NONE", words)
            del self._levels[connection_id, request_id]
            if level == Acknowledge.LEADER:
                require(code != Code.OK, "an accepted write has no result", words)
            if level == Acknowledge.IN_SYNC and code in (Code.OK, Code.UNDER_REPLICATED):
                self._check_count(member, code, rest[3:], words)
            if code == Code.NOT_ENOUGH_IN_SYNC:
                self._cover(REFUSED)

    def _check_count(self, member: MachineView, code: int, fields: Sequence[Any], words: str) -> None:
        """Check that a response has the code UNDER_REPLICATED if it names fewer members than the limit in force."""
        assert member.machine is not None
        wanted = member.machine.limits.min_in_sync
        names = fields[-1] if code == Code.OK else fields[1]
        require(
            isinstance(names, list) and (len(names) < wanted) == (code == Code.UNDER_REPLICATED),
            "if too few members hold a write, the response says so",
            f"{words}; min_in_sync is {wanted}",
        )
        if code == Code.UNDER_REPLICATED:
            self._cover(UNDER_REPLICATED)

    def _items(self, connection_id: int, data: bytes, *, is_response: bool) -> list[Sequence[Any]]:
        key = connection_id, is_response
        if key not in self._directions:
            self._directions[key] = _Direction()
        return self._directions[key].items(data)

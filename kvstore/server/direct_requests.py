"""Puts and gets that reach a service without frames, because they come from another port of the same member.

The service treats them like the requests of any other connection: the same bounds hold, and the same node decides. Only
the encoding and decoding of frames is left out. See docs/internals/fast-paths.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvstore.limits import AdmissionLimits
from kvstore.server.connections import DirectSink
from kvstore.server.fast_requests import RequestBatch
from kvstore.server.service import Service


class DirectRequests:
    """The direct requests of one connection. `bring_in` lets the node take up new requests."""

    def __init__(self, service: Service, connection_id: int, bring_in: Callable[[], None]) -> None:
        self._service, self._connection_id, self._bring_in = service, connection_id, bring_in

    def begin(self, sink: DirectSink) -> None:
        """Let `sink` take all responses."""
        self._service.connected_directly(self._connection_id, sink)

    @property
    def limits(self) -> AdmissionLimits:
        """The bounds on requests. Whoever submits requests has checked them."""
        return self._service.limits.admission

    @property
    def room(self) -> int:
        """The number of requests that the service takes now. It takes none on a member that does not lead, and none
        while authentication is on."""
        return self._service.room_for_direct_requests(self._connection_id)

    def submit(self, put_ids: Sequence[int], commands: list[bytes], get_ids: list[int], keys: Sequence[bytes]) -> None:
        """Make requests, at most `room` of them. `commands`: encoded puts without a session. Responses may come at
        once."""
        batch = RequestBatch()
        batch.command_ids, batch.commands, batch.session_ids = put_ids, commands, [0] * len(commands)
        batch.read_ids, batch.reads = get_ids, [[2, key] for key in keys]
        self._service.serve_directly(self._connection_id, batch)
        self._bring_in()

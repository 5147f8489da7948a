"""The ports of a member that has no data yet, and waits for a cluster to join or to begin.

At the client port, the member answers that it has no data, so that the member that may begin a cluster can count the
members without data. `/livez` reports success, so that no supervisor restarts the process. `/readyz` states what the
member waits for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from kvstore.member.certificates import MemberCertificates
from kvstore.member.config import MemberConfig
from kvstore.member.listeners import open_listeners
from kvstore.member.survey import NO_DATA
from kvstore.server.secure_port import SecurePort
from raft import Member, Refusal, frame
from raft.runtime import Acceptor

CALLERS_MAX = 64
"""The greatest number of open connections to the client port. Further connections are closed at once."""

CALLER_SECONDS_MAX = 5.0
"""The longest time of one connection to the client port, including its TLS handshake."""

DROP_BYTES_MAX = 4096


@dataclass(slots=True)
class WaitingRoom:
    """Answers the callers of a member without data. `reason`: a sentence that states what the member waits for."""

    name: str
    reason: str = "it looks for its cluster"
    callers: int = 0
    security: SecurePort | None = None

    async def answer(self, stream: trio.SocketStream) -> None:
        """Answer one caller that this member has no data, and close the connection."""
        if self.callers >= CALLERS_MAX:
            await trio.aclose_forcefully(stream)
            return
        self.callers += 1
        try:
            with trio.move_on_after(CALLER_SECONDS_MAX):
                secured = stream if self.security is None else await self.security.accept(stream)
                async with secured:
                    words = f"{self.name} has no data yet: {self.reason}"
                    await secured.send_all(frame(Refusal(NO_DATA, words).encode()))
                    await secured.send_eof()
                    while await secured.receive_some(DROP_BYTES_MAX):
                        pass  # With unread bytes, the system would send a reset, which may destroy the answer.
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # The caller is gone.
        finally:
            self.callers -= 1
            await trio.aclose_forcefully(stream)


@asynccontextmanager
async def open_waiting_room(config: MemberConfig, own: Member) -> AsyncIterator[WaitingRoom]:
    """Serve the client port and the metrics port of a member without data during the block.

    `own`: the member with its addresses, under any id. Raises CannotServe, ReachableByOthers, MetricsNotInstalled,
    UnusableCertificates.
    """
    certificates = MemberCertificates(own.node_id, config.tls)
    room = WaitingRoom(own.node_id)
    if certificates.clients is not None:
        room.security = SecurePort.of_clients(certificates.clients)
    listeners = await open_listeners(config, own, has_peers=False)
    async with trio.open_nursery() as nursery:
        await nursery.start(Acceptor("clients").serve, room.answer, listeners.clients)
        if listeners.metrics:
            from kvstore.monitoring.metrics_http import health_pages  # Loaded only if metrics are served.

            pages = health_pages(lambda: room.reason, certificates.metrics)
            await nursery.start(pages.serve, listeners.metrics)
        yield room
        nursery.cancel_scope.cancel()

"""The client of asyncio programs."""

from __future__ import annotations

from collections.abc import Sequence

from kvstore.asyncio.connection import SocketDialer
from kvstore.asyncio.pump import AsyncioPump
from kvstore.client.client import DEADLINE_SECONDS_DEFAULT, ClientCalls, check_endpoints
from kvstore.client.core import SESSION_TTL_NS_DEFAULT
from kvstore.client.dial import CallerCertificates
from kvstore.tls import Tls
from raft import InvalidConfiguration


class AsyncioClient(ClientCalls):
    """A client of one cluster, for the tasks of one asyncio loop. Its arguments, calls and errors are those of
    `kvstore.Client`; a `dialer` opens connected sockets.

    A cancelled call has an unknown outcome, as in trio. If the loop is closed while the client is open, nothing more is
    sent, and the session of the client expires by itself.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        deadline_seconds: float = DEADLINE_SECONDS_DEFAULT,
        session: bool = True,
        dialer: SocketDialer | None = None,
        tls: Tls | None = None,
    ) -> None:
        if dialer is not None and tls is not None:
            raise InvalidConfiguration(
                "a dialer opens the connections, and tls would be ignored: leave one of them out"
            )
        check_endpoints(endpoints, are_addresses=dialer is None)
        certificates = None if tls is None else CallerCertificates(tls)
        super().__init__(self._pump_of(endpoints, certificates, dialer, session=session), deadline_seconds)

    def _pump_of(
        self,
        endpoints: Sequence[str],
        certificates: CallerCertificates | None,
        dialer: SocketDialer | None,
        *,
        session: bool = True,
    ) -> AsyncioPump:
        """Make the pump of this client."""
        self.pump = AsyncioPump(
            endpoints,
            session_ttl_ns=SESSION_TTL_NS_DEFAULT if session else 0,
            certificates=certificates,
            dialer=dialer,
        )
        return self.pump

"""The client of asyncio programs."""

from __future__ import annotations

from collections.abc import Sequence

from kvstore.access.credentials import credentials_of
from kvstore.asyncio.connection import SocketDialer
from kvstore.asyncio.pump import AsyncioPump
from kvstore.client.client import DEADLINE_SECONDS_DEFAULT, ClientCalls, check_endpoints, cluster_id_of
from kvstore.client.core import SESSION_TTL_NS_DEFAULT
from kvstore.client.dial import CallerCertificates
from kvstore.client.recording.recorded_calls import recording_of
from kvstore.client.recording.recorder import OperationRecorder
from kvstore.connection_url import parse_url
from kvstore.tls import Tls
from raft import InvalidConfiguration


class AsyncioClient(ClientCalls):
    """A client of one cluster, for the tasks of one asyncio loop. Its arguments, calls and errors are those of
    `kvstore.Client`; a `dialer` opens connected sockets.

    A cancelled call has an unknown outcome, as in trio. If the loop is closed while the client is open, the client
    sends nothing more, and its session expires by itself.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        deadline_seconds: float = DEADLINE_SECONDS_DEFAULT,
        session: bool = True,
        dialer: SocketDialer | None = None,
        tls: Tls | None = None,
        cluster_id: bytes | str = b"",
        user: str | None = None,
        password: str | None = None,
        record: OperationRecorder | None = None,
    ) -> None:
        if dialer is not None and tls is not None:
            raise InvalidConfiguration(
                "a dialer opens the connections, and tls would be ignored: leave one of them out"
            )
        check_endpoints(endpoints, are_addresses=dialer is None)
        certificates = None if tls is None else CallerCertificates(tls)
        wanted = cluster_id_of(cluster_id)
        pump = self._pump_of(endpoints, certificates, dialer, session=session, cluster_id=wanted)
        pump.credentials = credentials_of(user, password)
        super().__init__(pump, deadline_seconds, recording_of(record))

    def _pump_of(
        self,
        endpoints: Sequence[str],
        certificates: CallerCertificates | None,
        dialer: SocketDialer | None,
        *,
        session: bool = True,
        cluster_id: bytes = b"",
    ) -> AsyncioPump:
        """Make the pump of this client."""
        self.pump = AsyncioPump(
            endpoints,
            session_ttl_ns=SESSION_TTL_NS_DEFAULT if session else 0,
            certificates=certificates,
            dialer=dialer,
            cluster_id=cluster_id,
        )
        return self.pump


def connect(url: str, *, password: str | None = None, record: OperationRecorder | None = None) -> AsyncioClient:
    """A client from a text such as `hwm://user@host:port/prefix?deadline=2`, as `kvstore.connect` reads it."""
    found = parse_url(url)
    client = AsyncioClient(found.endpoints, record=record, **found.client_options(password))
    return client.under(found.prefix) if found.prefix else client

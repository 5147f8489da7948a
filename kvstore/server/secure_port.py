"""TLS at a port of a member: performs the handshake with each caller, and logs the reason if a caller is refused."""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from kvstore.resources.connection_places import origin_of
from raft import Refusal, frame
from raft.runtime import Credentials, Handshakes, MemberStream, TlsFailed, TlsStream

logger = logging.getLogger("kvstore.tls")

TOLD_MAX = 100
"""The greatest number of different texts that are remembered. When this number is reached, all texts are forgotten, and
each text can be logged as a warning again."""


class SecurePort:
    """The TLS of one port. `refusal` encodes the reason for a refusal; the bytes are sent to a caller without TLS."""

    def __init__(self, credentials: Credentials, refusal: Callable[[str], bytes]) -> None:
        self._handshakes = Handshakes(credentials, refusal)
        self._purpose, self._node_id = credentials.purpose, credentials.node_id
        self._told: set[str] = set()

    @classmethod
    def of_clients(cls, credentials: Credentials) -> SecurePort:
        """The TLS of a client port. A refusal is sent as a frame."""
        return cls(credentials, lambda reason: frame(Refusal("tls_required", reason).encode()))

    async def accept(self, stream: trio.SocketStream) -> MemberStream:
        """Return the stream for all further data. If the handshake fails, close the connection. Then raise TlsFailed,
        after logging the reason, or BrokenResourceError if the caller has disconnected."""
        origin = _origin(stream)
        try:
            accepted = await self._handshakes.accept(stream)
        except BaseException as error:
            await trio.aclose_forcefully(stream)
            if isinstance(error, TlsFailed):
                code = "tls_required" if error.is_plain else "tls_failed"
                words = f"a connection of {self._purpose} from {origin} is refused ({code}): {error.reason}"
                self._warn_once("refused", words, origin, code=code, reason=error.reason)
            raise
        if accepted is stream:
            words = f"{origin} uses the port for {self._purpose} without TLS, which --tls-mixed allows"
            self._warn_once("without_tls", words, origin)
        return accepted

    def _warn_once(self, event: str, words: str, origin: str, **fields: object) -> None:
        level = logging.DEBUG if words in self._told else logging.WARNING
        if len(self._told) >= TOLD_MAX:
            self._told.clear()
        self._told.add(words)
        fields = {"purpose": self._purpose, "origin": origin, **fields}
        told = {"node_id": self._node_id, "event": event, "fields": fields, "message": words}
        logger.log(level, "%(node_id)s: %(message)s", told)


def certificate_name_of(stream: MemberStream) -> str:
    """Return the common name in the verified certificate of the caller; empty if the caller has shown no
    certificate."""
    certificate = stream.session.certificate if isinstance(stream, TlsStream) else None
    names = [] if certificate is None else [name for part in certificate.get("subject", ()) for name in part]
    return next((value for kind, value in names if kind == "commonName"), "")


def _origin(stream: trio.SocketStream) -> str:
    try:
        return origin_of(stream.socket.getpeername()[0])
    except OSError:
        return "a caller that has disconnected"

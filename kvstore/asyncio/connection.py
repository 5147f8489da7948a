"""One connection of an asyncio client to a member: plain, or with TLS under the frames."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol, cast

from kvstore.asyncio.dial import open_socket
from kvstore.client.dial import CallerCertificates, server_name_of
from kvstore.protocol.addresses import ascii_form, parse_address

if TYPE_CHECKING:
    from raft.runtime import TlsFailed, TlsSession

SocketDialer = Callable[[str], Awaitable[socket.socket | None]]
"""Opens a connected socket to an address; None: the client opens the socket as usual. Raises OSError or
InvalidAddress."""


class ConnectionOwner(Protocol):
    """The reports of a connection to its client. All methods are called in the event loop."""

    def heard(self, connection_id: int, data: bytes) -> None:
        """Bytes have come from the member."""
        ...

    def lost(self, connection_id: int, reason: BaseException | None) -> None:
        """The connection has ended. `reason`: the error that has ended it; None if the member has closed it."""
        ...


class MemberProtocol(asyncio.Protocol):
    """A connection that is being dialed, or is established. `ended` is set as soon as no socket is open."""

    def __init__(self, connection_id: int, address: str, owner: ConnectionOwner) -> None:
        self.connection_id, self.address = connection_id, address
        self.ended = asyncio.Event()
        self.dialing: asyncio.Task[None] | None = None
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._session: TlsSession | None = None
        self._is_secured = asyncio.Event()  # The handshake has succeeded or failed.
        self._failure: TlsFailed | None = None
        self._is_established = False  # `dial` has returned.
        self._is_over = False  # The owner has closed the connection, or knows that it has ended.

    async def dial(self, certificates: CallerCertificates | None, dialer: SocketDialer | None) -> None:
        """Open the connection. Raises OSError, InvalidAddress, TlsFailed."""
        try:
            await self._dial(certificates, dialer)
        except BaseException:
            self._is_over = True
            if self._transport is None:
                self.ended.set()
            elif self._failure is None:  # After a TlsFailed, the alert is still being sent.
                self._transport.abort()
            raise
        self._is_established = True

    async def _dial(self, certificates: CallerCertificates | None, dialer: SocketDialer | None) -> None:
        loop = asyncio.get_running_loop()
        connected = None if dialer is None else await dialer(self.address)
        if connected is not None:
            await loop.create_connection(lambda: self, sock=connected)
            return
        host, port = parse_address(self.address)
        if certificates is not None:
            from raft.runtime import TlsSession

            context = certificates.present().client
            self._session = TlsSession(context, is_server=False, server_name=server_name_of(self.address))
        connected = await open_socket(ascii_form(host), port)
        await loop.create_connection(lambda: self, sock=connected)
        if self._session is None:
            return
        from raft.runtime import HANDSHAKE_SECONDS_MAX, TlsFailed

        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS_MAX):
                await self._is_secured.wait()
        except TimeoutError:
            raise TlsFailed(f"the handshake was not done within {HANDSHAKE_SECONDS_MAX:g} s") from None
        if self._failure is not None:
            raise self._failure

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the TLS handshake, if the connection uses TLS."""
        self._transport = cast(asyncio.Transport, transport)
        if self._is_over:
            self._transport.abort()
        elif self._session is not None:
            self._session.handshake()
            self._transport.write(self._session.take_output())

    def data_received(self, data: bytes) -> None:
        """Pass the received bytes on to the owner."""
        if self._failure is not None:
            return  # The other side may still send data before it reads the alert. This data is dropped.
        if self._session is not None:
            data = self._decrypt(self._session, data)
        if data and not self._is_over:
            self._owner.heard(self.connection_id, data)

    def connection_lost(self, reason: Exception | None) -> None:
        """Report the end to the owner, unless the owner itself has closed the connection."""
        self.ended.set()
        if self._session is not None and not self._session.is_established and self._failure is None:
            from raft.runtime import TlsFailed

            words = "the other side closed the connection during the handshake"
            self._fail(TlsFailed(words, is_plain=not self._session.has_heard))
        self._is_secured.set()
        if self._is_established:
            self._report(reason)

    # Called by the owner.

    def send(self, data: bytes) -> None:
        """Send bytes: as many as the socket takes at once, and the rest later."""
        transport = self._transport
        if transport is None or transport.is_closing() or self._failure is not None:
            return
        if self._session is not None:
            from raft.runtime import TlsFailed

            try:
                data = self._session.send(data)
            except TlsFailed as error:
                self._fail(error)
                transport.abort()
                return
        transport.write(data)

    def close(self) -> None:
        """End the connection. The owner gets no further reports about the connection."""
        self._is_over = True
        if self.dialing is not None:
            self.dialing.cancel()
        if self._transport is None:
            return  # `dial` ends.
        if self._session is not None and self._failure is None and not self._transport.is_closing():
            self._transport.write(self._session.close())
        self._transport.abort()

    # Internal helpers.

    def _decrypt(self, session: TlsSession, cipher: bytes) -> bytes:
        from raft.runtime import ALERT_SECONDS_MAX, TlsFailed

        assert self._transport is not None
        plain = b""
        try:
            plain = session.feed(cipher)
        except TlsFailed as error:
            self._fail(error)
        if session.has_output:
            self._transport.write(session.take_output())
        if self._failure is not None:
            self._transport.write_eof()  # The other side gets some time to read the alert.
            asyncio.get_running_loop().call_later(ALERT_SECONDS_MAX, self._transport.abort)
        elif session.is_established:
            self._is_secured.set()
            if session.is_ended:
                self._transport.close()
        return plain

    def _fail(self, error: TlsFailed) -> None:
        self._failure = self._failure or error
        self._is_secured.set()
        if self._is_established:
            self._report(error)

    def _report(self, reason: BaseException | None) -> None:
        if not self._is_over:
            self._is_over = True
            self._owner.lost(self.connection_id, reason)

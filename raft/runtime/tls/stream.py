"""A TLS connection on a socket of trio, with direct sends: a call sends the bytes that the socket accepts at once, and
does not switch to another task.

`trio.SSLStream` cannot do this: its `send_all` waits for a lock, and each exchange costs 36 µs more.
"""

from __future__ import annotations

import os
from contextlib import AbstractAsyncContextManager, nullcontext

import trio

from raft.runtime.tls.errors import TlsFailed
from raft.runtime.tls.session import TlsSession

ENCRYPT_BYTES_MAX = 64 * 1024
"""The maximum number of plain bytes that are encrypted before they are written. So at most this number of
encrypted bytes, plus 2 %, waits for a full socket."""

CIPHER_BYTES_MIN = 16 * 1024
"""The minimum size of a read from the socket, even if the caller asks for fewer bytes: about one record."""

ALERT_SECONDS_MAX = 1.0
"""After a failed handshake, the time in which the other side can read the reason. If this side closed the socket with
unread bytes, the kernel would reset the connection, and the reason could be lost."""

BLOCKED_BYTES_MAX = 256 * 1024
"""The maximum size of the answers to TLS's own messages. The answers wait while the socket is full. An honest peer
needs only some hundred bytes."""


class TlsStream(trio.abc.HalfCloseableStream):
    """A TLS connection after, or during, its handshake. One task may send while another task receives.

    `send_at_once` may be used only if the caller sends the remaining bytes next. After `send_eof`, `receive_some` drops
    all bytes that arrive, and returns only the end of the stream.
    """

    def __init__(self, stream: trio.SocketStream, session: TlsSession) -> None:
        self.transport_stream, self.session = stream, session
        self.socket = stream.socket
        self._plain = b""  # Received bytes for which the last caller had no room.
        self._pending = bytearray()  # Encrypted bytes that the socket has not taken yet.
        self._ahead = 0  # How many plain bytes at the front of the next send are already encrypted.
        self._is_sending = False  # True while `send_all` runs: no other bytes may be sent before its bytes.
        self._is_closed = False  # True once this side has made its close-notify.

    async def do_handshake(self, turn: AbstractAsyncContextManager[object] | None = None) -> None:
        """Perform the handshake. `turn` is held during each step of the computation, which takes up to 2 ms.

        Raises TlsFailed (after an alert was sent to the other side), BrokenResourceError or ClosedResourceError.
        """
        session = self.session
        cipher: bytes | None = None
        while True:
            failure = None
            async with turn or nullcontext():
                try:
                    if cipher is None:
                        session.handshake()
                    else:
                        self._plain += session.feed(cipher)
                except TlsFailed as error:
                    failure = error
            if session.has_output:
                self._pending += session.take_output()
                try:
                    await self._send_pending()
                except trio.BrokenResourceError:
                    if failure is None:
                        raise
            if failure is not None:
                await self._part()
                raise failure
            if session.is_established:
                return
            cipher = bytes(await self.transport_stream.receive_some(CIPHER_BYTES_MIN))

    async def _part(self) -> None:
        """End the connection after a failed handshake, so that the other side can read the alert."""
        try:
            with trio.move_on_after(ALERT_SECONDS_MAX):
                await self.transport_stream.send_eof()
                while await self.transport_stream.receive_some(CIPHER_BYTES_MIN):
                    pass
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # The other side has disconnected.

    def send_at_once(self, data: bytes) -> int:
        """Encrypt and send as many bytes as the kernel takes without waiting. Return their number.

        If the kernel takes only a part of an encrypted block, the result is one less than the number of plain bytes in
        the blocks encrypted so far. So at least one byte remains, and the caller must call `send_all`, beginning with
        that byte. This method raises no error; a later `send_all` raises it.
        """
        if self._is_sending or self._ahead or self._is_closed or not self.session.is_established:
            return 0
        if self._pending and not self._write_pending():
            return 0
        size, done = len(data), 0
        try:
            number = self.socket.fileno()
            while done < size:
                part = data if size <= ENCRYPT_BYTES_MAX else data[done : done + ENCRYPT_BYTES_MAX]
                cipher = self.session.send(part)
                done += len(part)
                try:
                    count = os.write(number, cipher)
                except OSError:
                    count = 0
                if count < len(cipher):
                    self._pending += memoryview(cipher)[count:]
                    self._ahead = 1
                    return done - 1
        except TlsFailed:
            return done
        return done

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all bytes. Raises BrokenResourceError (TlsFailed is a subclass), ClosedResourceError."""
        await trio.lowlevel.checkpoint()
        if self._is_closed:
            raise trio.ClosedResourceError("this side has closed the connection")
        if self._is_sending:
            raise trio.BusyResourceError("another task is sending")
        self._is_sending = True
        try:
            rest = memoryview(data)[self._ahead :]
            self._ahead = max(0, self._ahead - len(data))
            await self._send_pending()
            while rest:
                self._pending += self.session.send(rest[:ENCRYPT_BYTES_MAX])
                rest = rest[ENCRYPT_BYTES_MAX:]
                await self._send_pending()
        finally:
            self._is_sending = False

    async def _send_pending(self) -> None:
        while self._pending:
            number = self.socket.fileno()
            if number < 0:
                raise trio.ClosedResourceError("this socket was already closed")
            try:
                del self._pending[: os.write(number, self._pending)]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(number)
            except OSError as error:
                raise trio.BrokenResourceError(f"socket connection broken: {error}") from error

    def _write_pending(self) -> bool:
        """Write as many encrypted bytes as the socket accepts. Return True if none are left."""
        try:
            del self._pending[: os.write(self.socket.fileno(), self._pending)]
        except OSError:
            return False
        return not self._pending

    async def wait_send_all_might_not_block(self) -> None:
        """See `trio.abc.SendStream`."""
        await self.transport_stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Wait for plain bytes; the result is empty at the end. Raises BrokenResourceError (TlsFailed is a subclass),
        ClosedResourceError."""
        if self._is_closed:
            return await self._drop_all()
        if not self._plain:
            self._plain = await self._receive(max(CIPHER_BYTES_MIN, max_bytes or 0))
        else:
            await trio.lowlevel.checkpoint()
        return self._take(max_bytes)

    def _take(self, bytes_max: int | None) -> bytes:
        taken, self._plain = self._plain, b""
        if bytes_max is not None and len(taken) > bytes_max:
            taken, self._plain = taken[:bytes_max], taken[bytes_max:]
        return taken

    async def _receive(self, bytes_max: int) -> bytes:
        """Wait for plain bytes. The result may be up to one record longer than `bytes_max`; it is empty at the end of
        the stream."""
        session, sock = self.session, self.socket
        while not session.is_ended:
            number = sock.fileno()
            if number < 0:
                raise trio.ClosedResourceError("this socket was already closed")
            await trio.lowlevel.wait_readable(number)
            try:
                cipher = os.read(sock.fileno(), bytes_max)
            except BlockingIOError:
                continue
            except OSError as error:
                raise trio.BrokenResourceError(f"socket connection broken: {error}") from error
            try:
                plain = session.feed(cipher)
            finally:
                if session.has_output:
                    self._answer()
            if plain:
                return plain
        return b""

    def _answer(self) -> None:
        """Send the messages of TLS itself. If the socket is full, the next send sends them."""
        self._pending += self.session.take_output()
        if len(self._pending) > ENCRYPT_BYTES_MAX + BLOCKED_BYTES_MAX:
            raise TlsFailed("the other side asks for new keys again and again, and reads nothing")
        if not self._is_sending:
            self._write_pending()

    async def _drop_all(self) -> bytes:
        while await self.transport_stream.receive_some(CIPHER_BYTES_MIN):
            pass
        return b""

    async def send_eof(self) -> None:
        """Send the close-notify, after which this side sends nothing."""
        if self._is_closed:
            return
        await self.send_all(b"")
        self._pending += self.session.close()
        self._is_closed = True
        await self._send_pending()
        await self.transport_stream.send_eof()

    async def aclose(self) -> None:
        """Close the socket, after a close-notify if the socket takes it at once."""
        if not self._is_closed and not self._is_sending and self.socket.fileno() >= 0:
            self._is_closed = True
            if not self._ahead:
                self._pending += self.session.close()
                self._write_pending()
        await self.transport_stream.aclose()

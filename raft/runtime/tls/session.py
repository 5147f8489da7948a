"""One TLS connection without I/O: it turns encrypted bytes into plain bytes, and plain bytes into encrypted bytes. The
plain bytes contain the frames.

OpenSSL works on two memory buffers. So the code that owns a socket decides when bytes are read and written, and can
still send within the flush itself (docs/adr/0053-tls-lies-under-the-frames.md).
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import Any

from raft.runtime.tls.errors import TlsFailed, failure_of

RECORD_BYTES_MAX = 16 * 1024
"""The maximum number of plain bytes in one TLS record (RFC 8446 §5.1). OpenSSL keeps at most one incomplete record."""

HANDSHAKE_BYTES_MAX = 256 * 1024
"""The maximum number of bytes that the other side may send before the handshake is complete. A chain of ten
certificates has 20 KiB."""


RECORD_CIPHER_BYTES_MAX = RECORD_BYTES_MAX + 2048
"""The maximum number of encrypted bytes in one record, without its header (RFC 5246 §6.2.3; TLS 1.3 allows less)."""

RECORDS_WITHOUT_DATA_MAX = 32
DATA_BYTES_PER_RECORD_WITHOUT = 1024 * 1024
"""The maximum number of records without data after the handshake, and the number of data bytes after which one more
such record is allowed. A record without data usually changes the keys, which takes up to 80 µs. Honest callers change
the keys only after gigabytes."""

_HEADER_BYTES = 5


class TlsSession:
    """One side of a connection. All methods are synchronous. After TlsFailed, the caller may only call `take_output`,
    which returns the alert for the other side.

    `server_name` is given only on the side of the client. If the context checks names, the certificate of the server
    must have this name or IP address.
    """

    def __init__(self, context: ssl.SSLContext, *, is_server: bool, server_name: str | None = None) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=is_server, server_hostname=server_name
        )
        self._beginning = b""  # The beginning of an incomplete record, after the handshake.
        self._data_bytes = self._records_without_data = 0
        self._handshake_bytes = 0
        self.is_established = False  # True once the handshake is complete on this side.
        self.is_ended = False  # True once the other side has sent close-notify, or has ended its stream.
        self.certificate: dict[str, Any] | None = None  # The other side's verified certificate, as `ssl` decodes it.
        self.protocol: str | None = None  # The application protocol that both sides have chosen (ALPN).

    @property
    def certificate_bytes(self) -> bytes | None:
        """The certificate of the other side (DER), verified or not; None if it has shown none."""
        return self._object.getpeercert(binary_form=True)

    @property
    def has_heard(self) -> bool:
        """True once any byte from the other side has arrived."""
        return self._handshake_bytes > 0

    def handshake(self) -> None:
        """Continue the handshake as far as the bytes received so far allow. Raises TlsFailed."""
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLEOFError:
            words = "the other side closed the connection during the handshake"
            raise TlsFailed(words, is_plain=not self.has_heard, code="closed") from None
        except ssl.SSLError as error:
            raise failure_of(error, is_established=False) from None
        # This happens only with TLS 1.2. OpenSSL stores the session, and deletes it with this object.
        if self._object.session_reused:
            raise TlsFailed("the other side wants to resume an earlier session, which would skip its certificate")
        try:
            self.certificate = self._object.getpeercert() or None
        except (ValueError, ssl.SSLError):  # OpenSSL checks the chain, but does not check that each name is text.
            words = "the certificate of the other side has a name that cannot be decoded"
            raise TlsFailed(words, code="bad_certificate") from None
        self.is_established = True
        self.protocol = self._object.selected_alpn_protocol()

    def feed(self, cipher: bytes) -> bytes:
        """Process encrypted bytes that have arrived; empty bytes mean the end of the stream. Return the plain bytes of
        the records that are now complete.

        There may be output afterwards (`has_output`). A stream may end without a close-notify, because each protocol
        above TLS states the lengths of its messages. Raises TlsFailed.
        """
        if not cipher:
            self._incoming.write_eof()
            if self.is_established:
                return self._read()
        if self.is_established:
            return self._read_records(self._beginning + cipher if self._beginning else cipher)
        if cipher:
            self._incoming.write(cipher)
        return self._feed_handshake(len(cipher))

    def _feed_handshake(self, byte_count: int) -> bytes:
        self._handshake_bytes += byte_count
        if self._handshake_bytes > HANDSHAKE_BYTES_MAX:
            raise TlsFailed(f"more than {HANDSHAKE_BYTES_MAX} bytes before the end of the handshake")
        self.handshake()
        # At this point OpenSSL has read whole records. The bytes after the handshake may already be data.
        return self._read_records(self._incoming.read()) if self.is_established else b""

    def _read_records(self, cipher: bytes) -> bytes:
        """Pass the records to OpenSSL one by one, because one call of OpenSSL would process any number of records
        without data."""
        parts: list[bytes] = []
        begin, size = 0, len(cipher)
        while size - begin >= _HEADER_BYTES and not self.is_ended:
            length = cipher[begin + 3] << 8 | cipher[begin + 4]
            end = begin + _HEADER_BYTES + length
            if end > size:
                if length <= RECORD_CIPHER_BYTES_MAX and cipher[begin + 1] == 3:
                    break
                end = size  # The bytes are not a valid record; OpenSSL reports the reason.
            self._incoming.write(cipher[begin:end])
            begin = end
            if plain := self._read():
                self._data_bytes += len(plain)
                parts.append(plain)
            elif not self.is_ended:
                self._records_without_data += 1
                allowed = RECORDS_WITHOUT_DATA_MAX + self._data_bytes // DATA_BYTES_PER_RECORD_WITHOUT
                if self._records_without_data > allowed:
                    raise TlsFailed(f"the other side has sent more than {allowed} records without data")
        self._beginning = cipher[begin:]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read(self) -> bytes:
        tls, incoming = self._object, self._incoming
        parts: list[bytes] = []
        try:
            # Once a complete record is read, both buffers are empty, and another read would only raise an exception.
            while not parts or tls.pending() or incoming.pending or incoming.eof:
                data = tls.read(RECORD_BYTES_MAX)
                if not data:
                    self.is_ended = True
                    break
                parts.append(data)
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            self.is_ended = True
        except ssl.SSLError as error:
            raise failure_of(error, is_established=True) from None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def send(self, plain: bytes | memoryview) -> bytes:
        """Encrypt bytes. Return all bytes that must be sent now. Called only after the handshake. Raises TlsFailed."""
        size = len(plain)
        try:
            done = self._object.write(plain)
            if done < size:  # One call encrypts one record.
                rest = memoryview(plain)
                while done < size:
                    done += self._object.write(rest[done:])
        except ssl.SSLError as error:
            raise failure_of(error, is_established=True) from None
        return self._outgoing.read()

    @property
    def has_output(self) -> bool:
        """True if there are bytes to send: a part of the handshake, an alert, or the answer to a change of keys."""
        return self._outgoing.pending > 0

    def take_output(self) -> bytes:
        """Remove and return the bytes to send."""
        return self._outgoing.read()

    def close(self) -> bytes:
        """Make the close-notify, after which this side sends nothing more. Return the bytes to send."""
        if self.is_established:
            with suppress(ssl.SSLError):  # The other side has not closed yet, or the connection is broken.
                self._object.unwrap()
        return self._outgoing.read()

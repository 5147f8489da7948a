"""Frames: each frame is the length of its body (u32, big-endian) and the body
(docs/reference/specification.md#71-frames).

This module does no I/O: it only splits bytes into bodies. So it works with any transport, with TLS or without.
"""

from __future__ import annotations

from raft.errors import ProtocolError

FRAME_BYTES_MAX_PEER = 16 * 1024 * 1024
"""The maximum size (bytes) of a frame between members: twice the largest payload of an entry, so that an append request
with one entry of this size always fits."""

FRAME_BYTES_MAX_CLIENT = 4 * 1024 * 1024
"""The maximum size (bytes) of a frame between client and member. It has room for the largest transaction (1.5 MiB) and
for the answer, which may be larger."""

HEADER_BYTES = 4

TLS_BEGINS = b"\x16\x03"
"""The first bytes of a TLS handshake (RFC 8446 §5.1). If these bytes are read as the length of a frame, the length is
far above any bound."""


def frame(body: bytes) -> bytes:
    """Return the frame of `body`, which must have 1 to 2**32 - 1 bytes."""
    assert 0 < len(body) < 1 << 32, len(body)
    return len(body).to_bytes(HEADER_BYTES, "big") + body


class FrameSplitter:
    """Cuts a byte stream into the bodies of its frames.

    Between calls the splitter keeps at most one incomplete frame (`bytes_max` + 4 bytes). A length is checked as soon
    as its four bytes have arrived, so a sender cannot make the buffer grow by stating a huge length.

    >>> splitter = FrameSplitter(bytes_max=10)
    >>> splitter.feed(frame(b"one") + frame(b"two")[:5])
    [b'one']
    >>> splitter.feed(b"wo")
    [b'two']
    """

    def __init__(self, bytes_max: int) -> None:
        assert bytes_max > 0, bytes_max
        self._bytes_max = bytes_max
        self.rest = bytearray()  # The bytes of the incomplete frame that have arrived.
        self._wanted = HEADER_BYTES  # While `rest` has fewer bytes than this number, no further frame can be complete.

    @property
    def wanted_bytes(self) -> int:
        """The size (bytes) of the incomplete frame, including its length field. While the length is not known yet, the
        result is the size of the length field."""
        return self._wanted

    def feed(self, data: bytes | bytearray) -> list[bytes]:
        """Take the next bytes of the stream. Return the bodies that are complete now, in order.

        Raises ProtocolError for a frame that is empty or too long. After this error the rest of the stream cannot be
        read, so the caller must close the stream.
        """
        if not self.rest:
            length = len(data) - HEADER_BYTES
            if 0 < length <= self._bytes_max and int.from_bytes(data[:HEADER_BYTES], "big") == length:
                return [bytes(data[HEADER_BYTES:])]  # `data` is exactly one frame, usually a lone request or answer.
            bodies, used = self._split(data)
            self.rest += data[used:] if used else data
            return bodies
        self.rest += data
        if len(self.rest) < self._wanted:
            return []
        bodies, used = self._split(self.rest)
        del self.rest[:used]
        return bodies

    def _split(self, data: bytes | bytearray) -> tuple[list[bytes], int]:
        """Return the complete bodies in `data`, and the size (bytes) of their frames."""
        bodies: list[bytes] = []
        start, size = 0, len(data)
        while size - start >= HEADER_BYTES:
            length = int.from_bytes(data[start : start + HEADER_BYTES], "big")
            if not 0 < length <= self._bytes_max:
                raise ProtocolError(self._told_of(length))
            end = start + HEADER_BYTES + length
            if end > size:
                self._wanted = end - start
                return bodies, start
            bodies.append(bytes(data[start + HEADER_BYTES : end]))
            start = end
        self._wanted = HEADER_BYTES
        return bodies, start

    def _told_of(self, length: int) -> str:
        told, header = f"a frame of {length} bytes; the bound is 1 to {self._bytes_max}", length.to_bytes(HEADER_BYTES)
        if header.startswith(TLS_BEGINS):
            return f"{told} (it began with a TLS handshake, and this port has no TLS: give the member certificates)"
        if not header.isascii() or not header.decode().isprintable():
            return told
        return f"{told} (it began with {header.decode()!r}: the sender is not a member of a cluster)"

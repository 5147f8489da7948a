"""Frames: a big-endian u32 length, then that many bytes of body (docs/reference/specification.md#71-frames).

This module does no I/O: it turns bytes into bodies, so that it works with any transport (and later with TLS).
"""

from __future__ import annotations

from raft.errors import ProtocolError

FRAME_BYTES_MAX_PEER = 16 * 1024 * 1024
"""The maximum size (bytes) of a frame between members: twice the largest entry payload, so that an append request with
one such entry always fits."""

FRAME_BYTES_MAX_CLIENT = 4 * 1024 * 1024
"""The maximum size (bytes) of a frame between client and member: enough for the largest transaction (1.5 MiB), and for
its answer, which may contain more records."""

HEADER_BYTES = 4


def frame(body: bytes) -> bytes:
    """Put the length before `body`, which has 1 to 2**32 - 1 bytes."""
    assert 0 < len(body) < 1 << 32, len(body)
    return len(body).to_bytes(HEADER_BYTES, "big") + body


class FrameSplitter:
    """Cuts a byte stream into the bodies of its frames.

    It holds at most one incomplete frame (`bytes_max` + 4 bytes) besides the bytes that `feed` was given. A length is
    checked as soon as its four bytes have arrived, so a hostile length makes no buffer grow.

    >>> splitter = FrameSplitter(bytes_max=10)
    >>> splitter.feed(frame(b"one") + frame(b"two")[:5])
    [b'one']
    >>> splitter.feed(b"wo")
    [b'two']
    """

    def __init__(self, bytes_max: int) -> None:
        assert bytes_max > 0, bytes_max
        self._bytes_max = bytes_max
        self.rest = bytearray()  # The incomplete frame, as far as it has arrived.
        self._wanted = HEADER_BYTES  # How many bytes `rest` must have before the next frame can be complete.

    @property
    def wanted_bytes(self) -> int:
        """The size (bytes) of the incomplete frame with its length field; only that of the length field while that is
        incomplete."""
        return self._wanted

    def feed(self, data: bytes | bytearray) -> list[bytes]:
        """Take bytes that a socket returned; return the bodies that are complete now, in order.

        Raises ProtocolError for an empty or too long frame. The stream has no meaning after that: close it.
        """
        if not self.rest:
            length = len(data) - HEADER_BYTES
            if 0 < length <= self._bytes_max and int.from_bytes(data[:HEADER_BYTES], "big") == length:
                return [bytes(data[HEADER_BYTES:])]  # Exactly one frame: the usual case for a lone request or answer.
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
        """Return the complete bodies in `data`, and the number of bytes of `data` that their frames took."""
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
        if not header.isascii() or not header.decode().isprintable():
            return told
        return f"{told} (it began with {header.decode()!r}: who speaks there is no member of a cluster)"

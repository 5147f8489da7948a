"""The header lists of HTTP/2: which lists of a client are valid, and how the lists of responses are written.

A list that is written here never uses the table of HPACK (RFC 7541) that both sides share. So the bytes of a list are
always the same. If a client lowers the size of its table, the next list begins with NO_TABLE, which sets the size to 0.
"""

from __future__ import annotations

import re
from functools import lru_cache

from kvstore.etcd.http2.connection import Headers

_NAME = re.compile(rb":?[!-9;-@\[-~]+")  # RFC 9113, section 8.2.1: no blanks, no capitals, and no further colon.
_VALUE = re.compile(rb"(?:[^\0\r\n \t](?:[^\0\r\n]*[^\0\r\n \t])?)?")
_PSEUDO = frozenset((b":method", b":scheme", b":path", b":authority", b":protocol"))
_OF_CONNECTIONS = frozenset((b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"))


def fault_of_request(headers: Headers) -> str:
    """Return why a request with these headers is malformed (RFC 9113, section 8.3); an empty text if it is not."""
    if fault := fault_of_fields(headers):
        return fault
    found = {name: value for name, value in headers if name.startswith(b":") or name == b"host"}
    if b":method" not in found:
        return "the request has no :method"
    if found[b":method"] == b"CONNECT" and b":protocol" not in found:
        if b":scheme" in found or b":path" in found:
            return "a CONNECT has a :scheme or a :path"
    elif b":scheme" not in found or not found.get(b":path"):
        return "the request has no :scheme or no :path"
    if b":protocol" in found and found[b":method"] != b"CONNECT":
        return "the request has a :protocol"
    authority = found.get(b":authority")
    host = found.get(b"host")
    if authority is None and host is None:
        return "the request has neither :authority nor host"
    if authority is not None and host is not None and authority != host:
        return "the request has an :authority that is not its host"
    return ""


def fault_of_trailers(headers: Headers) -> str:
    """Return why these trailers are malformed; an empty text if they are not."""
    if any(name.startswith(b":") for name, _ in headers):
        return "the trailers have a pseudo-header"
    return fault_of_fields(headers)


def fault_of_fields(headers: Headers) -> str:
    """Return why these fields may not be in any list of a client; an empty text if they may."""
    seen: set[bytes] = set()
    is_regular = False
    for name, value in headers:
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            return f"the header {name!r} has a character that is not allowed"
        if name.startswith(b":"):
            if is_regular or name in seen or name not in _PSEUDO:
                return f"the pseudo-header {name!r} is unknown, repeated, or behind other headers"
            seen.add(name)
            continue
        is_regular = True
        if name in _OF_CONNECTIONS or (name == b"te" and value.lower() != b"trailers"):
            return f"the header {name!r} has no place in HTTP/2"
        if name == b"host":
            if name in seen:
                return "the request has two hosts"
            seen.add(name)
    return ""


NO_TABLE = b"\x20"
"""The beginning of a header list whose sender gives up the table."""

_STATUS_200 = b"\x88"


@lru_cache(256)
def encode_headers(headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """Write a header list. Every field but the usual status is written in full, and is not added to the table."""
    parts: list[bytes] = []
    for name, value in headers:
        if (name, value) == (b":status", b"200"):
            parts.append(_STATUS_200)
        else:
            parts += (b"\0", _length(len(name)), name, _length(len(value)), value)
    return b"".join(parts)


def _length(number: int) -> bytes:
    """Write the length of a text without Huffman coding: an integer with a prefix of 7 bits (RFC 7541, section 5.1)."""
    if number < 0x7F:
        return bytes((number,))
    number -= 0x7F
    parts = bytearray((0x7F,))
    while number >= 0x80:
        parts.append(0x80 | number & 0x7F)
        number >>= 7
    parts.append(number)
    return bytes(parts)

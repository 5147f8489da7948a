"""Keys and values as text: UTF-8 as it is; other bytes, and text that begins with `base64:`, as `base64:…`."""

from __future__ import annotations

import base64
import binascii

PREFIX = "base64:"


def to_text(data: bytes) -> str:
    """The text that stands for `data`; `from_text` gives it back.

    >>> to_text(b"caf\\xc3\\xa9"), to_text(b"\\xff")
    ('café', 'base64:/w==')
    """
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = PREFIX
    return PREFIX + base64.b64encode(data).decode() if text.startswith(PREFIX) else text


def from_text(text: str) -> bytes:
    """The bytes that a text stands for. Raises ValueError if what follows `base64:` is not base64."""
    if not text.startswith(PREFIX):
        return text.encode("utf-8", "surrogateescape")  # Arguments of a process may hold any bytes.
    try:
        return base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except binascii.Error as error:
        raise ValueError(f"{text!r} is not base64: {error}") from error

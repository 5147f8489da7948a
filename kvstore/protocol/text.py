"""Keys and values as text. Valid UTF-8 stays unchanged. Other bytes, and text that begins with `base64:`, become
`base64:…`.

In text of unknown origin, control characters, and characters that change the direction of text, are always escaped.
"""

from __future__ import annotations

import base64
import binascii
import re

Text = bytes | str
"""A key or value as passed by a caller: bytes, or a str, which means its UTF-8 encoding."""

PREFIX = "base64:"

_CONTROLS = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # The C0 controls (line ends, tab, ESC) and the C1 controls (a one-character CSI).
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # Controls of the direction of text.
    "\u2028\u2029\ufff9-\ufffb\ud800-\udfff]"  # More line ends, annotations, and surrogates (bytes that are not UTF-8).
)


def to_text(data: bytes) -> str:
    """Return the text form of `data`, which `from_text` converts back.

    >>> to_text(b"caf\\xc3\\xa9"), to_text(b"\\xff")
    ('café', 'base64:/w==')
    """
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = PREFIX
    return PREFIX + base64.b64encode(data).decode() if text.startswith(PREFIX) else text


def to_shown_text(data: bytes) -> str:
    """Return the text form of `data` for one line or a table cell, in which data with a control character also becomes
    `base64:…`.

    >>> to_shown_text(b"x\\ty"), to_shown_text(b"x y")
    ('base64:eAl5', 'x y')
    """
    text = to_text(data)
    return PREFIX + base64.b64encode(data).decode() if _CONTROLS.search(text) else text


def escape_controls(text: str) -> str:
    """Escape control characters as `\\x1b`, `\\n`, `\\u202e`, so that the text is one line, and has no effect on a
    terminal.

    The result cannot be converted back reliably.

    >>> print(escape_controls("a\\nb"))
    a\\nb
    """
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def escape_controls_in_json(document: str) -> str:
    """Return the same JSON value without control characters. JSON itself escapes only the control characters below
    U+0020."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def from_text(text: str) -> bytes:
    """Return the bytes of a text form. Raises ValueError if the part after `base64:` is not base64."""
    if not text.startswith(PREFIX):
        return text.encode("utf-8", "surrogateescape")  # Reverses Python's decoding of arguments that are not UTF-8.
    try:
        return base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except binascii.Error as error:
        raise ValueError(f"{text!r} is not base64: {error}") from error


def as_bytes(text: Text) -> bytes:
    """Return the bytes of a key or value. Raises TypeError for any type other than bytes and str."""
    if isinstance(text, str):
        return text.encode()
    if not isinstance(text, bytes):
        raise TypeError(f"keys and values are bytes or text, not {type(text).__name__}")
    return text


def bytes_of_field(owner: str, name: str, value: object) -> bytes:
    """Return the bytes of a field of a command, which holds a key or a value. Raises TypeError for any type other than
    bytes and str."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return bytes(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    example = repr(str(value)) if is_number else "'a' or b'a'"
    raise TypeError(
        f"{owner}: {name} is bytes or text, such as {example:.40}, and not {value!r:.40} ({type(value).__name__})"
    )

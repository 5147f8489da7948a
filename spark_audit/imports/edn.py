"""A strict, streaming reader of EDN (https://github.com/edn-format/edn), the format in which Clojure prints histories.

Forms (EDN values) are read one at a time, each with the line on which it begins. Memory is bounded by the largest form.
A file is either a sequence of forms, or one vector or list that encloses all forms. In the second case, the elements of
this vector or list are the forms of the file.

Values are read as: nil → None, whole numbers (also 3N) → int, text → str, vectors and lists → tuple (EDN treats a
vector and a list with the same items as equal), maps → dict, sets → frozenset. All other atoms, such as keywords, are
read as `Name`s. A `Name` keeps its text, and names are compared by their texts. The atoms true and false are also read
as `Name`s, because Python's True and False would equal 1 and 0. The tag of a tagged form (`#tag form`) is dropped, so a
record becomes a map.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, TextIO

CHUNK_CHARACTERS = 1 << 16
FORM_DEPTH_MAX = 100  # Real histories are not nested so deeply.
TOKEN_CHARACTERS_MAX = 1 << 24  # A longer text is reported as a text without an end.
_UNKNOWN: Final = object()
# The parsed forms of at most this many distinct atoms are cached. Other atoms are parsed each time they occur.
_KNOWN_ATOMS_MAX = 1 << 16
_KNOWN_DIGITS_MAX = 5  # Longer numbers are mostly time stamps, which do not repeat, so they are not cached.

_TOKENS = re.compile(
    r"""
    \n
  | "[^"\\]*(?:\\[\s\S][^"\\]*)*(?:"|\\\Z)?  # text, perhaps cut off
  | ;[^\n]*                                   # comment
  | [\[\](){}] | \#\{ | \#_                   # brackets; #_ drops the form that follows
  | \#[^\s,()\[\]{}";_\#]+                    # tag
  | \#\#[A-Za-z-]*                            # ##Inf, ##NaN
  | \\(?:[^\s]?[^\s,()\[\]{}";\\]*)           # character: \a, \newline, \u0041, \(
  | [^\s,()\[\]{}";\#\\][^\s,()\[\]{}";\\]*   # any other atom
  | [^\s,]
    """,
    re.VERBOSE,
)
_WHOLE = re.compile(r"[+-]?(?:0|[1-9][0-9]{0,999})N?")  # A longer number becomes a `Name`.
_OTHER_NUMBER = re.compile(
    r"[+-]?(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?[MN]?|0x[0-9a-fA-F]+|##(?:-?Inf|NaN)"
)
_SYMBOL = r"(?:[^\W\d]|[.*+!_?$%&=<>|-])[\w.*+!?$%&=<>|:#'-]*"
_NAME = re.compile(rf":?(?:{_SYMBOL}/)?{_SYMBOL}|/|:[0-9][\w.-]*")
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "b": "\b", "f": "\f"}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|[0-7]{1,3}|[\s\S])")
_CLOSES: Final = {"[": "]", "(": ")", "{": "}", "#{": "}"}
_NAMED = {"[": "a vector", "(": "a list", "{": "a map", "#{": "a set"}


class Name(str):
    """The text of a keyword (`:read`), symbol, character or inexact number. A `Name` never equals a plain `str`."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Name) and str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


_INTERNED: dict[str, Name] = {}


def name(text: str) -> Name:
    """Return the `Name` with this text. The same text always gives the same object, so comparisons are cheap."""
    return _INTERNED.setdefault(text, Name(text))


class NotEdn(Exception):
    """The text on `line` is not EDN."""

    def __init__(self, line: int, expected: str, found: str) -> None:
        self.line, self.expected, self.found = line, expected, found
        super().__init__(line, expected, found)


def forms(text: TextIO) -> Iterator[tuple[int, Any]]:
    """Yield (line, form) for each form of the file; lines count from 1. Raises NotEdn.

    If one vector or list encloses all forms, its elements are yielded instead.
    """
    return _Reader(1, unwrap=True).forms(_tokens(text))


def form_of(text: str, line: int = 1) -> Any:
    """Return the only form in this text. `line`: the line for errors. Raises NotEdn."""
    found = [form for _, form in _Reader(line).forms([_TOKENS.findall(text)])]
    if len(found) != 1:
        raise NotEdn(line, "one value", f"{len(found)}" if found else "nothing")
    return found[0]


def _tokens(text: TextIO) -> Iterator[list[str]]:
    """Yield all tokens, chunk by chunk.

    A token at the end of a chunk may continue in the next chunk, so it is yielded only with the next chunk.
    """
    rest = ""
    line = 1
    while chunk := text.read(CHUNK_CHARACTERS):
        buffer = rest + chunk
        found: list[str] = _TOKENS.findall(buffer)
        rest = ""
        if found and found[-1] != "\n" and buffer.endswith(found[-1]):
            rest = found.pop()
            if len(rest) > TOKEN_CHARACTERS_MAX:
                raise NotEdn(line, "the end of a text", f"{len(rest)} characters without one")
        line += buffer.count("\n") - rest.count("\n")
        yield found
    yield _TOKENS.findall(rest)


class _Open:
    """A form that has begun but not ended: a collection, or a prefix (`#_`, a tag) whose form has not ended."""

    __slots__ = ("items", "line", "opened", "prefix")

    def __init__(self, opened: str, line: int) -> None:
        self.opened, self.line, self.prefix = opened, line, opened not in _CLOSES
        self.items: list[Any] = []

    def whole(self) -> Any:
        """Return the complete collection. Raises NotEdn if the items do not make a valid map or set."""
        if self.opened in ("[", "("):
            return tuple(self.items)
        keys = self.items if self.opened == "#{" else self.items[::2]
        if self.opened == "{" and len(self.items) % 2:
            raise NotEdn(self.line, "a map with a value for each key", f"{len(self.items)} forms in it")
        made: dict[Any, Any] | frozenset[Any]
        try:
            made = frozenset(keys) if self.opened == "#{" else dict(zip(keys, self.items[1::2], strict=True))
        except TypeError:
            raise NotEdn(
                self.line, "keys and members that are no maps", f"a map inside {_NAMED[self.opened]}"
            ) from None
        if len(made) < len(keys):
            raise NotEdn(self.line, f"{_NAMED[self.opened]} with each key once", "a key twice")
        return made


class _Reader:
    def __init__(self, line: int, *, unwrap: bool = False) -> None:
        self._line = line
        # True if a vector or list that begins now encloses all forms of the file.
        self._unwrap = unwrap
        self._around: _Open | None = None
        self._ended = False  # Whether the enclosing collection has ended.
        self._open: list[_Open] = []
        self._atoms: dict[str, Any] = {**_INTERNED, "nil": None}

    def forms(self, chunks: Iterable[list[str]]) -> Iterator[tuple[int, Any]]:
        known = self._atoms.get
        items: list[Any] | None = None  # The items of the innermost open form; None if that form is a prefix.
        for tokens in chunks:
            for token in tokens:
                line = self._line
                form = known(token, _UNKNOWN)
                if form is _UNKNOWN:
                    first = token[0]
                    if first == "\n":
                        self._line += 1
                        continue
                    if first == ";":
                        continue
                    if first in "[({" or (first == "#" and token[1:2] != "#"):
                        items = self._begin(token)
                        continue
                    if first in ")]}":
                        ended = self._end(token)
                        if ended is None:
                            continue
                        line, form = ended
                        items = self._items()
                    else:
                        form = self._atom(token)
                if items is not None:
                    items.append(form)
                    continue
                placed = self._placed(line, form)
                items = self._items()
                if placed is not None:
                    yield placed
        self._finished()

    def _items(self) -> list[Any] | None:
        return self._open[-1].items if self._open and not self._open[-1].prefix else None

    def _begin(self, token: str) -> list[Any] | None:
        opened = _Open(token, self._line)
        unwrapped, self._unwrap = self._unwrap and token in "[(", False
        if unwrapped:
            self._around = opened
            return None
        if self._ended and not self._open and token != "#_":
            raise NotEdn(self._line, "the end of the file, after the collection", token)
        if len(self._open) >= FORM_DEPTH_MAX:
            raise NotEdn(self._line, f"at most {FORM_DEPTH_MAX} levels", "a form inside that many levels")
        if opened.prefix and token != "#_" and not token[1:2].isalpha():
            raise NotEdn(self._line, "a form", token)
        self._open.append(opened)
        return self._items()

    def _end(self, token: str) -> tuple[int, Any] | None:
        """Return (line, form) of the collection that this bracket closes; None if it encloses all forms of the file."""
        now = self._open[-1] if self._open else None if self._ended else self._around
        if now is None or _CLOSES.get(now.opened) != token:
            raise NotEdn(self._line, "a form" if now is None else f"the end of {_begun(now)}", token)
        if not self._open:
            self._ended = True
            return None
        self._open.pop()
        return now.line, now.whole()

    def _placed(self, line: int, form: Any) -> tuple[int, Any] | None:
        """Add a complete form to the form that contains it. Return (line, form) if no form contains it."""
        self._unwrap = False
        while self._open and self._open[-1].prefix:
            before = self._open.pop()
            if before.opened == "#_":
                return None
            line = before.line
        if self._open:
            self._open[-1].items.append(form)
            return None
        if self._ended:
            raise NotEdn(line, "the end of the file, after the collection", text_of(form))
        return line, form

    def _atom(self, token: str) -> Any:
        if token[0] == '"':
            return _unquoted(token, self._line, self._note_lines)
        form: Any
        if _WHOLE.fullmatch(token):
            form = int(token.rstrip("N"))
            if len(token) > _KNOWN_DIGITS_MAX:
                return form
        elif _NAME.fullmatch(token) or _OTHER_NUMBER.fullmatch(token) or (token[0] == "\\" and len(token) > 1):
            form = Name(token)
        else:
            raise NotEdn(self._line, "a form", token)
        if len(self._atoms) < _KNOWN_ATOMS_MAX:
            self._atoms[token] = form
        return form

    def _note_lines(self, count: int) -> None:
        self._line += count

    def _finished(self) -> None:
        now = self._open[-1] if self._open else None if self._ended else self._around
        if now is not None:
            raise NotEdn(now.line, f"the end of {_begun(now)}", "the end of the file")


def _begun(form: _Open) -> str:
    return f"{_NAMED.get(form.opened, form.opened)} begun on line {form.line}"


def _unquoted(token: str, line: int, note_lines: Any) -> str:
    inner = token[1:-1]
    if len(token) < 2 or token[-1] != '"' or (len(inner) - len(inner.rstrip("\\"))) % 2:
        raise NotEdn(line, "the end of a text", f"{token[:20]} and the end of the file")
    note_lines(inner.count("\n"))
    if "\\" not in inner:
        return inner
    whole = _ESCAPE.sub(lambda match: _unescaped(match[1], line), inner)
    try:
        # Java escapes a character such as 😀 as two UTF-16 code units, which are combined here.
        return whole.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise NotEdn(line, "both halves of a surrogate pair", token[:20]) from None


def _unescaped(escape: str, line: int) -> str:
    if escape[0] == "u" and len(escape) == 5:
        return chr(int(escape[1:], 16))
    if escape[0] in "01234567":
        return chr(int(escape, 8))
    if escape not in _ESCAPES:
        raise NotEdn(line, "an escape of EDN in a text", f"\\{escape}")
    return _ESCAPES[escape]


def text_of(form: Any) -> str:
    """Return the form as EDN text.

    Members of maps and sets are sorted by their text, so that equal forms have equal texts.
    """
    if form is None:
        return "nil"
    if isinstance(form, (int, Name)):
        return str(form)
    if isinstance(form, str):
        return '"' + re.sub(r'["\\\n\t\r]', lambda match: _ESCAPED[match[0]], form) + '"'
    if isinstance(form, tuple):
        return "[" + " ".join(map(text_of, form)) + "]"
    if isinstance(form, dict):
        return "{" + ", ".join(sorted(f"{text_of(key)} {text_of(value)}" for key, value in form.items())) + "}"
    return "#{" + " ".join(sorted(map(text_of, form))) + "}"


_ESCAPED = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}

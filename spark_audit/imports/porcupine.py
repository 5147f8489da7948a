"""Reads Porcupine's key-value histories: `{:process 0, :type :invoke, :f :append, :key "3", :value "x"}` on each line.

Porcupine's test data (`test_data/kv`) has this format. A get of a key that was never written returns the empty text.
The format has no escapes: the text between the quotes is the value.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import TextIO

from spark_audit.imports.events import Event, Settings, refused

_LINE = re.compile(
    r"\{:process (?P<process>\d{1,18}), :type :(?P<type>invoke|ok|fail|info), :f :(?P<f>get|put|append), "
    r':key "(?P<key>.*?)", :value (?:nil|"(?P<value>.*)")\}'
)
_EXAMPLE = '{:process 0, :type :invoke, :f :append, :key "3", :value "x"} (:f of get, put, append)'


class PorcupineKv:
    """Reads the lines of a key-value history of Porcupine."""

    def __init__(self, settings: Settings) -> None:  # noqa: ARG002 (as all formats are made)
        self.left_out: Counter[str] = Counter()

    def events(self, text: TextIO) -> Iterator[Event]:
        """Yield the events of a history, in the order of its lines."""
        for line, content in enumerate(text, 1):
            match = _LINE.fullmatch(content.strip())
            if match is None:
                if content.strip():
                    raise refused(line, _EXAMPLE, content.strip())
                continue
            process, type_, f, key, value = match.groups()
            if not key:
                raise refused(line, "a key that is not empty", content.strip())
            if key.startswith("base64:") or (value or "").startswith("base64:"):
                raise refused(line, "keys and values that do not begin with base64:", content.strip())
            if value is None and (type_, f) != ("invoke", "get") and type_ in ("invoke", "ok"):
                raise refused(line, f"a text as :value of {type_} {f}", "nil")
            yield Event(line, int(process), type_, f, key, value)

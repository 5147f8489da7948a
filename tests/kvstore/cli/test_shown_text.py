"""Keys, values, names and texts from other people are made safe before they are shown or logged."""

from __future__ import annotations

import json
import logging
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.monitoring.log_format import JsonFormatter, TextFormatter
from kvstore.protocol.text import escape_controls, escape_controls_in_json, from_text, to_shown_text

NASTY = ("x\ty\nz", "\x1b]0;title\x07", "\x9b2J", "a\u202eb", "a\u2028b", "\r", "\x7f", "\x85", "a\u2067b", "\udc9b")


@pytest.mark.parametrize("text", NASTY)
def test_nothing_that_a_terminal_obeys_is_shown(text: str) -> None:
    """No shown character begins a new line or changes the order of the text around it."""
    shown = to_shown_text(text.encode("utf-8", "surrogateescape"))

    assert shown.startswith("base64:")
    for safe in (shown, escape_controls(text), escape_controls_in_json(json.dumps(text, ensure_ascii=False))):
        assert safe.isprintable()
        assert len(safe.splitlines()) == 1


@given(st.binary(max_size=40) | st.text(max_size=20).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_what_is_shown_of_a_key_can_be_given_back(data: bytes) -> None:
    """Two different keys never look the same, and one key never looks like two keys."""
    shown = to_shown_text(data)

    assert from_text(shown) == data
    assert len(shown.splitlines()) <= 1
    assert "\t" not in shown


@given(st.text(max_size=40))
def test_a_json_value_stays_what_it_is(text: str) -> None:
    """Escaping changes only the spelling of the value."""
    document = escape_controls_in_json(json.dumps({text: [text]}, ensure_ascii=False))

    assert json.loads(document) == {text: [text]}


def record_of(text: str) -> logging.LogRecord:
    try:
        raise ValueError(text)
    except ValueError:
        return logging.LogRecord("raft", logging.WARNING, "x.py", 1, "refused: %s", (text,), sys.exc_info())


@pytest.mark.parametrize("text", [*NASTY, "a\n12:00:00 ERROR kvstore all is lost"])
def test_nobody_begins_a_line_of_the_log_for_us(text: str) -> None:
    """A stranger may choose a node id or a reason that is logged. All further lines of the log belong to a traceback
    and are indented."""
    first, *more = TextFormatter("%(levelname)s %(message)s").format(record_of(text)).split("\n")
    line = JsonFormatter().format(record_of(text))

    assert first == f"WARNING refused: {escape_controls(text)}"
    assert more
    assert all(each.startswith("  ") and each.isprintable() for each in more)
    assert line.isprintable()
    assert json.loads(line)["message"] == f"refused: {text}"

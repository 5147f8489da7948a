"""The log of `hwm serve` on stderr: human-readable text, or one JSON object per line."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from kvstore.protocol.text import escape_controls, escape_controls_in_json


def start_logging(level: str, *, as_json: bool) -> None:
    """Log messages of the level `level` and above to stderr. `level`: a level name of `logging`, in upper or lower
    case."""
    handler = logging.StreamHandler()
    if as_json:
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(TextFormatter("%(asctime)s %(levelname)s %(name)s %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=level.upper(), handlers=[handler])


class TextFormatter(logging.Formatter):
    """Formats each record as one line. Control characters in names and texts are escaped, so they cannot begin another
    line.

    >>> record = logging.makeLogRecord({"levelname": "INFO", "msg": "refused: %s", "args": ("x\\nERROR y\\x1b[2J",)})
    >>> print(TextFormatter("%(levelname)s %(message)s").format(record))
    INFO refused: x\\nERROR y\\x1b[2J
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - As logging calls it.
        """Escape control characters in the message. `logging` calls this method."""
        return escape_controls(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - As logging calls it.
        """Indent the lines of a traceback, so that they cannot be mistaken for log messages. `logging` calls this
        method."""
        return "\n".join(f"  {escape_controls(line)}" for line in super().formatException(ei).splitlines())


class JsonFormatter(logging.Formatter):
    """Formats each record as a JSON object with `time` (UTC), `level` and `logger`.

    The record of an event also has `node_id`, `event`, `fields` and sometimes `message`. Any other record has
    `message`.

    >>> record = logging.makeLogRecord({"name": "raft.driver", "levelname": "INFO", "created": 0.25})
    >>> record.msg, record.args = "%(node_id)s", {"node_id": "s1", "event": "stepped_down", "fields": {"term": 3}}
    >>> print(JsonFormatter().format(record))  # doctest: +ELLIPSIS
    {"time": "1970-01-01T00:00:00.250000+00:00", ... "node_id": "s1", "event": "stepped_down", "fields": {"term": 3}}
    """

    def format(self, record: logging.LogRecord) -> str:
        """Format a record. `logging` calls this method. Formatting never fails: a value of a type that JSON lacks is
        written as text."""
        item: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        if isinstance(record.args, Mapping) and "event" in record.args:
            item |= record.args
        else:
            item["message"] = record.getMessage()
        if record.exc_info:
            item["exception"] = self.formatException(record.exc_info)
        return escape_controls_in_json(json.dumps(item, default=str, ensure_ascii=False))

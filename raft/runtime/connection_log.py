"""The log of a member's connections. Each line has a sentence for people, and an event with fields for machines.

The log also counts the hellos that this member refuses. A misconfigured peer tries again every second. So a text is
logged as a warning only the first time, and at level DEBUG after that.
"""

from __future__ import annotations

import logging
import traceback
from collections import Counter

from raft.errors import ValidationFault

logger = logging.getLogger("raft.transport")

WARNINGS_MAX = 100
"""The maximum number of different warnings that are remembered. When this number is reached, all warnings are
forgotten. Each text can then be logged as a warning again."""

HELLO_REFUSALS = frozenset(
    {
        "feature_level", "not_a_hello", "not_a_member", "own_id", "removed", "tls_failed", "tls_required",
        "too_many_pins", "version", "wrong_certificate", "wrong_cluster", "wrong_group", "wrong_incarnation",
        "wrong_node", "wrong_port", "other",
    }
)  # fmt: skip
"""The codes by which refused hellos are counted. The set is fixed, which bounds the number of metrics."""


class ConnectionLog:
    """The log of one member's connections. All methods are synchronous and raise no error."""

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        self._warned: set[str] = set()  # The texts of earlier warnings.
        self.refused = Counter[str]()  # Hellos that this member refused, by code.
        self.validation_faults = 0  # How many inputs from peers or strangers raised ValidationFault.

    def event(self, level: int, event: str, words: str, **fields: object) -> None:
        """Log one event at a `level` of `logging`. `words`: the sentence for people, which follows this member's id."""
        if logger.isEnabledFor(level):
            told = {"node_id": self._node_id, "event": event, "fields": fields, "message": words}
            logger.log(level, "%(node_id)s: %(message)s", told)

    def warn_once(self, event: str, words: str, **fields: object) -> None:
        """Log one event: as a warning if `words` occur for the first time, otherwise at level DEBUG."""
        self.event(logging.DEBUG if words in self._warned else logging.WARNING, event, words, **fields)
        self._remember(words)

    def _remember(self, words: str) -> None:
        if len(self._warned) >= WARNINGS_MAX:
            self._warned.clear()
        self._warned.add(words)

    def validation_failed(self, peer_id: str | None, fault: ValidationFault) -> None:
        """Log a ValidationFault that an input from a peer or a stranger has caused: the first time at level ERROR, with
        a traceback, and at level DEBUG after that."""
        self.validation_faults += 1
        cause = fault.__cause__
        where = traceback.extract_tb(cause.__traceback__)[-1:] if cause is not None else []
        words = f"{type(cause).__name__} at {''.join(f'{at.filename}:{at.lineno}' for at in where)}"
        level = logging.DEBUG if words in self._warned else logging.ERROR
        self._remember(words)
        if logger.isEnabledFor(level):
            message = f"data from {peer_id or 'a stranger'} was dropped and its connection closed: {fault}"
            fields = {"peer_id": peer_id, "reason": str(fault)}
            told = {"node_id": self._node_id, "event": "validation_failed", "fields": fields, "message": message}
            logger.log(level, "%(node_id)s: %(message)s", told, exc_info=cause if level == logging.ERROR else None)

    def count_refusal(self, code: str) -> None:
        """Count a refused hello by its code, or as `other`."""
        self.refused[code if code in HELLO_REFUSALS else "other"] += 1

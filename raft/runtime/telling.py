"""What happens to a member's connections, as the log tells it: words for people, and an event with fields for machines.

A hello that this member refuses is counted, too. What is misconfigured is tried again every second: it is a warning
only the first time, and after that for whoever looks closely.
"""

from __future__ import annotations

import logging
from collections import Counter

logger = logging.getLogger("raft.transport")

COMPLAINTS_MAX = 100
"""Different complaints about callers that are remembered, so that each is a warning only once in a while."""

HELLO_REFUSALS = frozenset(
    {
        "feature_level", "not_a_hello", "not_a_member", "own_id", "removed", "too_many_pins", "version",
        "wrong_cluster", "wrong_group", "wrong_incarnation", "wrong_node", "wrong_port", "other",
    }
)  # fmt: skip
"""Every code with which a hello is refused, as it is counted: a bound on the number of series."""


class ConnectionLog:
    """Of one member. Everything here is synchronous and never fails."""

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        self._complaints: set[str] = set()  # Said before.
        self.refused = Counter[str]()  # Hellos that this member did not take, by code.

    def tell(self, level: int, event: str, words: str, **fields: object) -> None:
        """Log one event, with `level` of `logging`. `words` are what people read behind the id of this member."""
        if logger.isEnabledFor(level):
            told = {"node_id": self._node_id, "event": event, "fields": fields, "message": words}
            logger.log(level, "%(node_id)s: %(message)s", told)

    def complain(self, event: str, words: str, **fields: object) -> None:
        """As `tell`: a warning the first time, and then only for debugging."""
        self.tell(logging.DEBUG if words in self._complaints else logging.WARNING, event, words, **fields)
        if len(self._complaints) >= COMPLAINTS_MAX:
            self._complaints.clear()
        self._complaints.add(words)

    def count_refusal(self, code: str) -> None:
        """A hello was not taken."""
        self.refused[code if code in HELLO_REFUSALS else "other"] += 1

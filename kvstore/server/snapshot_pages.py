"""Pages of the newest durable snapshot, for clients that save the snapshot, and the request to build a newer snapshot.

The member keeps no state between two requests of a client: each request names the file of the first page. A member
reads only its newest file, never a file by a name from a client. If the member has written a newer file since the first
page, the client begins again.

Pages are read synchronously, like the entries of `read_log`. Reading 1 MiB takes 0.1 ms if the file is in the page
cache, which is usual for a file that was just written. Reading from the disk takes longer. Encoding 1 MiB takes 0.6 ms.
A snapshot is built in chunks, between other work.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from kvstore.protocol.validation import is_count
from raft import MIB, Node, ProtocolError, TraceEvent

PAGE_BYTES_MAX = MIB


class SnapshotPages:
    """The snapshot pages of one member, and the reason why the last build was cancelled."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._given_up = ""  # The reason why the last requested build was cancelled; empty if there is none.

    def heed(self, events: Sequence[TraceEvent]) -> None:
        """Store the reason if one of these events of the node reports a cancelled build."""
        for event in events:
            if event.name == "snapshot_given_up":
                self._given_up = re.sub(r"^\[Errno \d+\] ", "", str(event.fields["reason"]))  # For people.

    def page(self, revision: int, items: Sequence[Any]) -> tuple[Any, ...]:
        """Return the fields of the response: the name of the file, its size, and some of its bytes.

        If there is no such page, the fields are: None, the reason, whether a snapshot is being built, and the reason
        why the last requested build was cancelled (empty if there is none). `revision`: the present revision of the
        store, which would be the revision of a snapshot built now. Raises ProtocolError for malformed items.
        """
        name, offset, bytes_max, revision_min, wants_build = _judged(items)
        info = self._node.newest_snapshot()
        found = info.header.machine["revision"]
        if name is not None and name != info.name:
            return None, f"{name} was replaced by {info.name}", False, ""
        if name is None and found < revision_min:
            if revision < revision_min:
                return None, f"this member has applied revision {revision}, but {revision_min} was requested", False, ""
            if wants_build:
                self._given_up = ""
                self._node.snapshot_now()
            words = f"the newest snapshot is of revision {found}, but {revision_min} was requested"
            return None, words, wants_build, self._given_up
        try:
            data = self._node.read_snapshot(info, offset, min(bytes_max or PAGE_BYTES_MAX, PAGE_BYTES_MAX))
        except OSError as error:
            return None, f"{info.name} cannot be read: {error.strerror or error}", False, ""
        return info.name, info.size_bytes, data


def _judged(items: Sequence[Any]) -> tuple[str | None, int, int, int, bool]:
    if len(items) >= 5:
        name, offset, bytes_max, revision_min, wants_build = items[:5]
        has_words = (name is None or type(name) is str) and type(wants_build) is bool
        if has_words and is_count(offset) and is_count(bytes_max) and is_count(revision_min):
            return name, offset, bytes_max, revision_min, wants_build
    raise ProtocolError("a snapshot request is [request_id, 7, name or null, offset, bytes_max, revision_min, build]")

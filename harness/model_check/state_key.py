"""The key of a member's state, as plain tuples: everything on which the future behaviour of the member depends.

Members with equal keys behave equally. By default a key holds *all* fields of an object and of the objects
in them, so it includes any field that is added to the core later. LEFT_OUT names the fields that a key omits, with the
reasons why the behaviour does not depend on them.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Hashable, Mapping
from enum import Enum
from typing import Any

from raft import Entry

StateKey = Hashable

LEFT_OUT: dict[str, frozenset[str]] = {
    # The key omits these fields, because each event resets them.
    "CoreHost": frozenset({"now", "sent", "events", "applied", "reads_ready", "reads_failed"}),
    "CoreState": frozenset(
        {
            "config", "random",  # The fields in this line and the next line never change and are equal on all members.
            "configuration", "configurations", "configured_at", "quorum", "peer_ids", "voting_peer_ids", "is_alone",
            # These fields are left out, because time stands still, nothing is compacted, and open proposals affect only
            # the outcomes for clients.
            "now", "compacted_leader_time", "open_proposals",
            "low_watermark",  # This mark only limits compaction, and nothing is compacted.
            "leader_match_index",  # The index is only used to refuse messages that no honest peer sends.
            # The search has no bounded reads, and prefers no member as leader.
            "staleness", "yielded_count", "yielded_at",
        }
    ),
    "RaftLog": frozenset({"_cache", "_cache_bytes", "_cache_bytes_max", "_sizes", "_sizes_from", "_run_starts"}),
    "Leader": frozenset(
        {
            "has_pending_sends",  # The field is always false, because no message waits after a flush.
            "membership",  # The search has no membership changes.
            "lease",  # The search has no lease reads.
            # A cache of the last message. Without the cache, the core would make an equal message again.
            "_last_append", "_last_append_bytes",
        }
    ),
    # `last_applied` is only used for the low-water mark, and `heard_at` never changes, because time stands still.
    # `is_idle` and `may_send` follow from the other fields.
    "Progress": frozenset({"last_applied", "heard_at", "_config", "is_idle", "may_send"}),
    "Outbox": frozenset({"_writes"}),  # The key has this object already, from a field of the state.
    "Disk": frozenset({"appended"}),  # `appended` follows from the two other fields.
    "AppendEntries": frozenset({"low_watermark"}),
    "AppendAccepted": frozenset({"last_applied"}),
    "AppendRejected": frozenset({"last_applied"}),
}  # fmt: skip

# Fields with a tuple of messages whose order does not matter: any two of these messages go to different peers, wait for
# different writes, or are of different kinds.
UNORDERED = {("Outbox", "waiting")}

_fields: dict[type, tuple[str, ...]] = {}


def state_key(thing: object) -> StateKey:
    """Return the key of a member or of a message."""
    return _draw(thing, set())


def rename(drawn: StateKey, names: Mapping[str, str]) -> StateKey:
    """Return this key with members renamed."""
    if isinstance(drawn, tuple):
        return tuple([rename(part, names) for part in drawn])
    if isinstance(drawn, frozenset):
        return frozenset([rename(part, names) for part in drawn])
    return names.get(drawn, drawn) if isinstance(drawn, str) else drawn


def _draw(thing: Any, seen: set[int]) -> StateKey:
    if thing is None or isinstance(thing, int | str | bytes):
        return thing
    if isinstance(thing, Enum):
        return thing.name
    if isinstance(thing, Entry):
        # A rule checks that no two entries have the same (index, term), so the key leaves out the payload.
        return thing.index, thing.term, int(thing.kind)
    if isinstance(thing, tuple | list | deque):
        return tuple([_draw(part, seen) for part in thing])
    if isinstance(thing, dict):
        return frozenset([(key, _draw(value, seen)) for key, value in thing.items()])
    if isinstance(thing, set | frozenset):
        return frozenset([_draw(part, seen) for part in thing])
    if dataclasses.is_dataclass(thing):
        return _draw_fields(thing, seen)
    if id(thing) in seen:
        return type(thing).__name__  # Several parts of the core share this object, and the key has its fields already.
    seen.add(id(thing))
    return _draw_fields(thing, seen)


def _draw_fields(thing: object, seen: set[int]) -> StateKey:
    kind = type(thing)
    names = _fields.get(kind) or _find_fields(thing)
    drawn: list[StateKey] = [kind.__name__]
    for name in names:
        part = _draw(getattr(thing, name), seen)
        drawn.append(frozenset(part) if (kind.__name__, name) in UNORDERED and isinstance(part, tuple) else part)
    return tuple(drawn)


def _find_fields(thing: object) -> tuple[str, ...]:
    if dataclasses.is_dataclass(thing):
        names = [field.name for field in dataclasses.fields(thing)]
    else:
        names = list(vars(thing))
    left_out = LEFT_OUT.get(type(thing).__name__, frozenset())
    assert left_out <= set(names), f"{type(thing).__name__} no longer has {sorted(left_out - set(names))}"
    found = _fields[type(thing)] = tuple(name for name in names if name not in left_out)
    return found

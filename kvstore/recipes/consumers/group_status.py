"""The state of a consumer group, which any program can read from the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvstore.protocol.commands import Range, prefix_range
from kvstore.protocol.results import KeyRecord
from kvstore.protocol.text import Text
from kvstore.recipes.consumers.group_keys import (
    GROUPS_PREFIX,
    GroupAbout,
    GroupKeys,
    Share,
    StoredPosition,
    after_group,
    group_of,
    line_among,
)
from kvstore.recipes.local_copy import read_range
from kvstore.recipes.store import KeyStore

GROUPS_LISTED_MAX = 1_000
"""The greatest number of groups that one call lists. Each group takes one request."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A consumer in a line, or a member of a group with several shares. `name`: the name that the program has given for
    it."""

    name: bytes
    lease_id: int
    fence: int


@dataclass(frozen=True, slots=True)
class ShareStatus:
    """A share: its position (None: no consumer has begun the share yet), its active consumer (None: there is none), and
    the number of consumers that wait in line."""

    share: Share
    position: int | None
    active: GroupMember | None
    waiting: int


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """A group as of the revision `revision` of the store. `members` is empty for a group without shares."""

    group: bytes
    prefix: bytes
    shares: tuple[ShareStatus, ...]
    members: tuple[GroupMember, ...]
    revision: int

    @property
    def position(self) -> int | None:
        """The least position of a share; None if some share has no position yet."""
        positions = [each.position for each in self.shares]
        return None if None in positions else min(position for position in positions if position is not None)

    @property
    def lag_revisions(self) -> int | None:
        """The number of revisions of the store after the position, which counts changes of all keys. None if some share
        has no position yet."""
        return None if self.position is None else max(0, self.revision - self.position)


async def read_group(store: KeyStore, group: Text) -> GroupStatus | None:
    """The state of a group; None if there is no such group. Raises GroupMismatch if the keys were not written by a
    group."""
    keys = GroupKeys(group)
    items, revision = await read_range(store, *prefix_range(keys.prefix))
    values = {item.key: item.value or b"" for item in items}
    if keys.about not in values:
        return None
    about = GroupAbout.decode(keys.group, values[keys.about])
    shares = tuple(_share_status(keys, share, items, values) for share in about.shares)
    members = tuple(_member(item) for item in line_among(items, keys.members))
    return GroupStatus(keys.group, about.prefix, shares, members, revision)


async def list_groups(store: KeyStore, *, after: Text = b"", limit: int = GROUPS_LISTED_MAX) -> list[bytes]:
    """Return the names of the groups after the name `after`, in order. A program that receives `limit` names calls
    again with the last of these names. Cost: one request for each group."""
    start, end = prefix_range(GROUPS_PREFIX)
    start = after_group(GroupKeys(after).prefix) if after else start
    found: list[bytes] = []
    while len(found) < min(limit, GROUPS_LISTED_MAX):
        page = await store.range(Range(start, end, limit=1, keys_only=True))
        if not page.items:
            break
        name = group_of(page.items[0].key)
        if name is not None:
            found.append(name)
        start = after_group(page.items[0].key)
    return found


def _share_status(keys: GroupKeys, share: Share, items: Sequence[KeyRecord], values: dict[bytes, bytes]) -> ShareStatus:
    stored = values.get(keys.position(share.number))
    position = None if stored is None else StoredPosition.decode(keys.group, stored).position
    line = [_member(item) for item in line_among(items, keys.owners(share.number))]
    return ShareStatus(share, position, line[0] if line else None, max(0, len(line) - 1))


def _member(item: KeyRecord) -> GroupMember:
    return GroupMember(item.value or b"", item.lease_id, item.create_revision)

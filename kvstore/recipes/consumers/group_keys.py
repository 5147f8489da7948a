"""The keys of a consumer group in the store, and their values. No I/O.

The group `G` has these keys (`SSSS`: the number of a share, in four decimal digits; `L`: a lease id in 16 hex digits):

    consumers/G/about               {"from_revision": number, "prefix": text, "starts": [text, ...]}, written by the
                                    first member
    consumers/G/members/L           the name of a member; only groups with several shares have these keys
    consumers/G/owners/SSSS/L       the line for the share: the first key belongs to its active consumer
    consumers/G/positions/SSSS      {"fence": number, "number": number, "position": revision}

The values are JSON objects. Keys of members and owners belong to the lease of the member, so they are removed when the
member ends. The keys of members and owners form one range, which the members of a group watch. A prefix or start is
written as text by `kvstore.protocol.text.to_text`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from kvstore.errors import GroupMismatch
from kvstore.protocol.commands import prefix_range
from kvstore.protocol.results import KeyRecord
from kvstore.protocol.text import Text, as_bytes, from_text, to_text
from kvstore.recipes.contender import line_of
from kvstore.store.map import FIRST_REVISION
from raft import INT64_MAX

GROUPS_PREFIX = b"consumers/"
"""The keys of all groups begin with this prefix. No group can consume these keys."""

GROUP_BYTES_MAX = 128
"""The greatest length of the name of a group. This bound ensures that the keys of a group fit in `key_bytes_max`, which
is 1,024 by default."""

SHARES_MAX = 256
"""The greatest number of shares of a group. A member owns a key for each of its shares, and a lease can have 1,024
keys."""

START_BYTES_MAX = 64
"""The greatest length of the first key of a share, without the prefix that the group consumes. All first keys of a
group are in one value."""


@dataclass(frozen=True, slots=True)
class Share:
    """A part of the keys of a group: the keys with start ≤ key < end. If `end` is None, there is no upper bound."""

    number: int
    start: bytes
    end: bytes | None


@dataclass(frozen=True, slots=True)
class GroupAbout:
    """The prefix and shares of a group, and the revision at which the group begins. `starts`: the first key of each
    share, without the prefix. The first start is empty. A group without shares has one share of all keys.
    `from_revision`: the first revision that the group consumes; 0 means the revision after the creation of the
    group."""

    prefix: bytes
    starts: tuple[bytes, ...] = (b"",)
    from_revision: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError if no group can have this prefix and these starts."""
        if self.prefix.startswith(GROUPS_PREFIX) or GROUPS_PREFIX.startswith(self.prefix):
            raise ValueError(
                f"the prefix {self.prefix!r:.80} includes keys below {GROUPS_PREFIX!r}, where groups keep their "
                "positions: name a narrower prefix"
            )
        if not 1 <= len(self.starts) <= SHARES_MAX:
            raise ValueError(f"a group has from 1 to {SHARES_MAX} shares, not {len(self.starts)}")
        if self.starts[0] or any(low >= high for low, high in zip(self.starts, self.starts[1:], strict=False)):
            raise ValueError("the starts of shares ascend, and the first start is empty")
        longest = max(map(len, self.starts))
        if longest > START_BYTES_MAX:
            raise ValueError(
                f"the start of a share has at most {START_BYTES_MAX} bytes after the prefix, not {longest}"
            )

    @property
    def shares(self) -> tuple[Share, ...]:
        """The shares in the order of their keys."""
        _, end = prefix_range(self.prefix)
        starts = [self.prefix + start for start in self.starts]
        ends = [*starts[1:], end]
        return tuple(Share(number, low, high) for number, (low, high) in enumerate(zip(starts, ends, strict=True)))

    def first_position(self, made_at: int) -> int:
        """The position at which each share of the group begins. `made_at`: the create revision of the key `about`.

        A share that is begun later begins at the same position. Otherwise the changes in between would be skipped.
        """
        # A new store has FIRST_REVISION, and no changes.
        return max(FIRST_REVISION, self.from_revision - 1) if self.from_revision else made_at

    def encode(self) -> bytes:
        """The value of the key `about`."""
        starts = [to_text(start) for start in self.starts]
        return _json({"from_revision": self.from_revision, "prefix": to_text(self.prefix), "starts": starts})

    @classmethod
    def decode(cls, group: bytes, value: bytes) -> GroupAbout:
        """Decode a value made by `encode`. Raises GroupMismatch for any other value."""
        try:
            fields = json.loads(value)
            from_revision = fields.get("from_revision", 0)
            if type(from_revision) is not int or not 0 <= from_revision <= INT64_MAX:
                raise ValueError("a revision is a number")
            starts = tuple(from_text(start) for start in fields["starts"])
            return cls(from_text(fields["prefix"]), starts, from_revision)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise GroupMismatch(group, f"its key {GroupKeys(group).about!r:.200} does not describe a group") from error


@dataclass(frozen=True, slots=True)
class StoredPosition:
    """The position of a share: every change up to the revision `position` is consumed.

    `fence` and `number` identify the commit that wrote the position: the fence of the consumer, and the number of this
    commit among the commits of the consumer. Both are 0 if the position was not written by a commit.
    """

    position: int
    fence: int = 0
    number: int = 0

    def encode(self) -> bytes:
        """The value of the key of the position."""
        return _json({"fence": self.fence, "number": self.number, "position": self.position})

    @classmethod
    def decode(cls, group: bytes, value: bytes) -> StoredPosition:
        """Decode a value made by `encode`. Raises GroupMismatch for any other value."""
        try:
            fields = json.loads(value)
            numbers = [fields["position"], fields["fence"], fields["number"]]
            if any(type(number) is not int or not 0 <= number <= INT64_MAX for number in numbers):
                raise ValueError("a position consists of numbers")
        except (ValueError, TypeError, KeyError) as error:
            raise GroupMismatch(group, f"the value {value!r:.80} is not a position") from error
        return cls(*numbers)


class GroupKeys:
    """The keys of one group. Raises ValueError if the name is empty, is too long, or contains a slash."""

    def __init__(self, group: Text) -> None:
        name = as_bytes(group)
        if not name or b"/" in name or len(name) > GROUP_BYTES_MAX:
            raise ValueError(
                f"the name of a group has from 1 to {GROUP_BYTES_MAX} bytes and no slash, not {name!r:.80}"
            )
        self.group = name
        self.prefix = GROUPS_PREFIX + name + b"/"
        self.about = self.prefix + b"about"
        self.members = self.prefix + b"members"
        self.claims = self.prefix + b"members/", self.prefix + b"owners0"
        """The start and the end of the range with the keys of members and owners."""

    def member(self, lease_id: int) -> bytes:
        """The key of a member."""
        return self.members + b"/%016x" % lease_id

    def owners(self, share: int) -> bytes:
        """The name of the line for a share."""
        return self.prefix + b"owners/%04d" % share

    def position(self, share: int) -> bytes:
        """The key of the position of a share."""
        return self.prefix + b"positions/%04d" % share


def line_among(items: Sequence[KeyRecord], name: bytes) -> list[KeyRecord]:
    """Select the records of the line `name` from `records`, in the order of the line."""
    return line_of(name, [item for item in items if item.key.startswith(name + b"/")])


def group_of(key: bytes) -> bytes | None:
    """The name of the group to which a key below GROUPS_PREFIX belongs; None if no group can have this key."""
    name, slash, _ = key.removeprefix(GROUPS_PREFIX).partition(b"/")
    is_name = bool(name and slash) and len(name) <= GROUP_BYTES_MAX
    return name if key.startswith(GROUPS_PREFIX) and is_name else None


def after_group(key: bytes) -> bytes:
    """Return the least key after all keys of the group to which `key` belongs. `key` must be below GROUPS_PREFIX."""
    name, slash, _ = key.removeprefix(GROUPS_PREFIX).partition(b"/")
    return GROUPS_PREFIX + name + (b"0" if slash else b"\0")


def even_starts(shares: int, alphabet: Text = bytes(range(256))) -> tuple[bytes, ...]:
    """Split keys evenly by the first one or two bytes after the prefix, which are bytes of `alphabet` (by default any
    bytes). Returns the starts of the shares.

    >>> even_starts(4, "0123456789abcdef")
    (b'', b'4', b'8', b'c')

    Raises ValueError if `shares` is not from 1 to SHARES_MAX, or if the alphabet has too few bytes.
    """
    digits = sorted(set(as_bytes(alphabet)))
    if not 1 <= shares <= SHARES_MAX or shares > len(digits) ** 2:
        most = min(SHARES_MAX, len(digits) ** 2)
        raise ValueError(f"with this alphabet, keys split into 1 to {most} shares, not {shares}")
    starts = [b""]
    for number in range(1, shares):
        first, second = divmod(number * len(digits) ** 2 // shares, len(digits))
        starts.append(bytes([digits[first], digits[second]] if second else [digits[first]]))
    return tuple(starts)


def starts_of(shares: int | Sequence[Text]) -> tuple[bytes, ...]:
    """Return the starts of the shares that a caller has given, either as a number (for an even split) or as the starts
    themselves."""
    return even_starts(shares) if isinstance(shares, int) else tuple(as_bytes(start) for start in shares)


def _json(fields: dict[str, object]) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()

"""The members of a cluster, the configurations of one log, and the identity of a cluster and of a data folder.

See docs/reference/specification.md#1-identity.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from raft.encoding.cbor import decode_item, encode_item
from raft.errors import InvalidConfiguration, NewerConfiguration, ProtocolError

NODE_ID_PATTERN = re.compile(r"[a-z0-9-]{1,64}")
MEMBERS_MAX = 9
"""The maximum number of members, learners included. More members would make commits slower but not safer. The bound
also limits the sum of all buffers for peers. In a joint configuration the bound applies to the members of both halves
together."""

REMOVED_IDS_MAX = 256
"""How many ids of removed members a configuration lists. These ids take at most 16 KiB in each snapshot. An id that is
no longer listed is protected only by pins: a member that knew the former member refuses another incarnation with its
id.

See docs/reference/specification.md#14-removed-ids.
"""

_LEVEL, _LEASE_LEVEL = 2, 3
_VOTER, _OUTGOING, _LEARNER = 1, 2, 4


@dataclass(frozen=True, slots=True, order=True)
class Member:
    """One member: its ids and its addresses, as the configuration states them. Addresses have the form `host:port`, as
    the member *advertises* them. An address is empty if no other node connects to the member there.

    `incarnation_id` has 16 bytes or is empty. If the id is empty, each peer accepts the incarnation in the member's
    first hello.

    See docs/reference/specification.md#13-incarnations-and-pins.
    """

    node_id: str
    peer_address: str = ""
    client_address: str = ""
    incarnation_id: bytes = b""

    def __post_init__(self) -> None:
        if not NODE_ID_PATTERN.fullmatch(self.node_id):
            raise InvalidConfiguration(f"node id {self.node_id!r} must match [a-z0-9-]{{1,64}}")
        if not isinstance(self.peer_address, str) or not isinstance(self.client_address, str):
            raise InvalidConfiguration(f"the addresses of {self.node_id} are texts")
        if not isinstance(self.incarnation_id, bytes) or len(self.incarnation_id) not in (0, 16):
            raise InvalidConfiguration(f"the incarnation of {self.node_id} has 16 bytes, or none")


@dataclass(frozen=True, slots=True)
class Configuration:
    """The members of the cluster. `voters`, `outgoing` and `learners` are in canonical order (by node id).

    A majority of `voters` decides. While `outgoing` is not empty, the configuration is *joint* (Raft §6): a majority of
    each half must agree, and the next configuration has no `outgoing` voters. `learners` have the log but no vote.
    `removed` has the ids of former members, oldest first. These ids are never used again.

    `lease_ns` (0 if leaders do not use leases): whenever a member hears a leader, it promises to vote for no other
    member during the next `lease_ns`, even after a restart. Once set, this value stays in every later configuration.
    """

    voters: tuple[Member, ...]
    outgoing: tuple[Member, ...] = ()
    learners: tuple[Member, ...] = ()
    removed: tuple[str, ...] = ()
    lease_ns: int = 0

    def __post_init__(self) -> None:
        for part in (self.voters, self.outgoing, self.learners):
            ids = [member.node_id for member in part]
            if ids != sorted(set(ids)):
                raise InvalidConfiguration(f"member ids must be unique and in order: {', '.join(ids)}")
        members = {*self.voters, *self.outgoing, *self.learners}
        ids = [member.node_id for member in members]
        if not self.voters or len(ids) > MEMBERS_MAX:
            raise InvalidConfiguration(
                f"a cluster has 1 to {MEMBERS_MAX} members, of which at least one votes, not {len(ids)}"
            )
        if len(set(ids)) < len(ids) or {*self.learners} & {*self.voters, *self.outgoing}:
            raise InvalidConfiguration(f"a member is a voter or a learner, and listed once: {', '.join(sorted(ids))}")
        if {*self.removed} & {*ids} or len(set(self.removed)) < len(self.removed):
            raise InvalidConfiguration(
                f"removed ids must be unique, and no member may have one: {', '.join(self.removed)}"
            )
        if len(self.removed) > REMOVED_IDS_MAX or not all(map(NODE_ID_PATTERN.fullmatch, self.removed)):
            raise InvalidConfiguration(f"removed members must be valid node ids, at most {REMOVED_IDS_MAX}")
        if type(self.lease_ns) is not int or self.lease_ns < 0:
            raise InvalidConfiguration(f"the promise to a leader lasts 0 ns or more, not {self.lease_ns!r}")

    @classmethod
    def of(cls, members: Sequence[Member]) -> Configuration:
        """Build a canonical configuration from voters in any order. Raises InvalidConfiguration if a voter is named
        twice."""
        return cls(tuple(sorted(members)))

    @property
    def is_joint(self) -> bool:
        """True if the configuration has two halves, and a majority of each must agree."""
        return bool(self.outgoing)

    @property
    def members(self) -> tuple[Member, ...]:
        """All members, in the order of ids."""
        return tuple(sorted({*self.voters, *self.outgoing, *self.learners}))

    @property
    def voter_ids(self) -> tuple[str, ...]:
        """The ids in `voters`, in canonical order. Voters that are only in `outgoing` are not included."""
        return tuple(member.node_id for member in self.voters)

    @property
    def outgoing_ids(self) -> tuple[str, ...]:
        """The ids of the outgoing voters, in canonical order."""
        return tuple(member.node_id for member in self.outgoing)

    @property
    def learner_ids(self) -> tuple[str, ...]:
        """The ids of all learners, in canonical order."""
        return tuple(member.node_id for member in self.learners)

    def member(self, node_id: str) -> Member | None:
        """The member with this id, or None."""
        everybody = (*self.voters, *self.outgoing, *self.learners)
        return next((member for member in everybody if member.node_id == node_id), None)

    def is_voter(self, node_id: str) -> bool:
        """True if this member is in `voters` or in `outgoing`."""
        return any(member.node_id == node_id for member in (*self.voters, *self.outgoing))

    def encode(self) -> bytes:
        """Encode as canonical CBOR, in the lowest of the three forms below that can hold the configuration. Members are
        in the order of ids.

        1. Voters without incarnations and nothing else: `[[node_id, peer_address, client_address], ...]`.
        2. Without `lease_ns`: `[2, [[node_id, peer_address, client_address, incarnation_id, part], ...], [removed id,
           ...]]`, where `part` is the sum of 1 (voter), 2 (outgoing) and 4 (learner).
        3. With `lease_ns`: like the second form, but `[3, ..., ..., lease_ns]`.
        """
        members = self.members
        is_plain = not (self.outgoing or self.removed or self.lease_ns or any(m.incarnation_id for m in members))
        if members == self.voters and is_plain:
            return encode_item([[m.node_id, m.peer_address, m.client_address] for m in members])
        parts = ((self.voters, _VOTER), (self.outgoing, _OUTGOING), (self.learners, _LEARNER))
        rows = [
            [m.node_id, m.peer_address, m.client_address, m.incarnation_id, sum(n for part, n in parts if m in part)]
            for m in members
        ]
        if self.lease_ns:
            return encode_item([_LEASE_LEVEL, rows, list(self.removed), self.lease_ns])
        return encode_item([_LEVEL, rows, list(self.removed)])

    @classmethod
    def decode(cls, data: bytes) -> Configuration:
        """Decode the bytes of `encode`. Raises NewerConfiguration for a form that only later builds know, and
        InvalidConfiguration for all other bytes."""
        try:
            item = decode_item(data)
            if type(item[0]) is int and item[0] > _LEASE_LEVEL:
                raise NewerConfiguration(item[0], _LEASE_LEVEL)
            is_plain = item[0] not in (_LEVEL, _LEASE_LEVEL)
            found = cls(tuple(Member(*row) for row in item)) if is_plain else cls._of_parts(item)
        except NewerConfiguration:
            raise
        except (ProtocolError, TypeError, ValueError, LookupError) as error:
            raise InvalidConfiguration(f"not a configuration: {error}") from error
        if found.encode() != data:
            raise InvalidConfiguration("not a configuration in canonical form")
        return found

    @classmethod
    def _of_parts(cls, item: Any) -> Configuration:
        _, rows, removed, *lease_ns = item
        members = [(Member(*row[:4]), row[4]) for row in rows]
        voters, outgoing, learners = (
            tuple(member for member, sum_of_parts in members if sum_of_parts & part)
            for part in (_VOTER, _OUTGOING, _LEARNER)
        )
        return cls(voters, outgoing, learners, tuple(removed), *lease_ns)


def derive_cluster_id(token: str | bytes, configuration: Configuration) -> bytes:
    """The 16 bytes that name a cluster: the first half of a SHA-256 hash of the token and the initial configuration.

    See docs/reference/specification.md#11-ids.
    """
    raw = token.encode() if isinstance(token, str) else token
    return hashlib.sha256(len(raw).to_bytes(4, "big") + raw + configuration.encode()).digest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The identity of a data folder: its cluster, group, member and incarnation. Every hello and every file header
    states this identity.

    See docs/reference/specification.md#11-ids.
    """

    cluster_id: bytes
    group_id: int
    node_id: str
    incarnation_id: bytes

    def __post_init__(self) -> None:
        assert len(self.cluster_id) == 16, self
        assert len(self.incarnation_id) == 16, self
        assert self.group_id >= 0, self


class ConfigurationHistory:
    """The configurations of one log: the configuration of the snapshot and all later ones (Raft §6). Each configuration
    is listed with the index of its entry.

    The newest configuration is in force as soon as its entry is appended, whether it is committed or not. If that entry
    is cut, the previous configuration is in force again. The first remembered configuration may be listed with the
    index of a snapshot, which is higher than the index of the configuration's entry.
    """

    def __init__(self, index: int, configuration: Configuration) -> None:
        self._indexes = [index]
        self._configurations = [configuration]

    @property
    def latest(self) -> Configuration:
        """The configuration in force."""
        return self._configurations[-1]

    @property
    def latest_index(self) -> int:
        """The index of the entry of `latest`. If the log no longer has that entry, this is a later, committed index at
        which `latest` was in force."""
        return self._indexes[-1]

    @property
    def leased_from(self) -> int | None:
        """The index of the first remembered configuration with `lease_ns`; None if there is none."""
        return next((i for i, each in zip(self._indexes, self._configurations, strict=True) if each.lease_ns), None)

    @property
    def all(self) -> tuple[Configuration, ...]:
        """All remembered configurations, oldest first."""
        return tuple(self._configurations)

    def at(self, index: int) -> Configuration:
        """The newest configuration at or before `index`, which must not be below the first remembered configuration."""
        place = bisect_right(self._indexes, index) - 1
        assert place >= 0, (index, self._indexes)
        return self._configurations[place]

    def append(self, index: int, configuration: Configuration) -> None:
        """Add the configuration of an entry that was appended to the log at `index`."""
        assert index > self._indexes[-1], (index, self._indexes)
        self._indexes.append(index)
        self._configurations.append(configuration)

    def cut_from(self, index: int) -> bool:
        """Forget the configurations from `index` on, because their entries were cut. Return True if another
        configuration is in force now."""
        kept = bisect_right(self._indexes, index - 1)
        assert kept > 0, (index, self._indexes)
        is_other = kept < len(self._indexes)
        del self._indexes[kept:], self._configurations[kept:]
        return is_other

    def reset(self, index: int, configuration: Configuration) -> None:
        """Start again with one configuration, because a snapshot at `index` with this configuration has replaced the
        log."""
        self._indexes, self._configurations = [index], [configuration]

    def forget_before(self, index: int) -> None:
        """Forget each configuration that was replaced by a newer one at or before `index`."""
        passed = bisect_right(self._indexes, index) - 1
        if passed > 0:
            del self._indexes[:passed], self._configurations[:passed]

    def correct_first(self, configuration: Configuration) -> None:
        """Replace the first remembered configuration by the configuration of a snapshot."""
        self._configurations[0] = configuration

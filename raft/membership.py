"""Who belongs to the cluster, and the identities that are derived from it (FORMATS §1)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

import cbor2

from raft.errors import InvalidConfiguration

NODE_ID_PATTERN = re.compile(r"[a-z0-9-]{1,64}")
MEMBERS_MAX = 9
"""More voters than this make commits slower and no safer; the bound keeps every per-peer buffer bounded in sum."""


@dataclass(frozen=True, slots=True, order=True)
class Member:
    """One member as all the others know it. Addresses are `host:port` as *advertised*; empty where nobody dials it."""

    node_id: str
    peer_address: str = ""
    client_address: str = ""

    def __post_init__(self) -> None:
        if not NODE_ID_PATTERN.fullmatch(self.node_id):
            raise InvalidConfiguration(f"node id {self.node_id!r} must match [a-z0-9-]{{1,64}}")


@dataclass(frozen=True, slots=True)
class Configuration:
    """The voters of the cluster, in canonical order (by node id)."""

    voters: tuple[Member, ...]

    def __post_init__(self) -> None:
        ids = [member.node_id for member in self.voters]
        if not 1 <= len(ids) <= MEMBERS_MAX:
            raise InvalidConfiguration(f"a cluster has 1 to {MEMBERS_MAX} members, not {len(ids)}")
        if ids != sorted(set(ids)):
            raise InvalidConfiguration(f"member ids must be unique and in order: {', '.join(ids)}")

    @classmethod
    def of(cls, members: Sequence[Member]) -> Configuration:
        """Build the canonical configuration from members in any order; InvalidConfiguration if one is named twice."""
        return cls(tuple(sorted(members)))

    @property
    def voter_ids(self) -> tuple[str, ...]:
        """The ids of all voters, in canonical order."""
        return tuple(member.node_id for member in self.voters)

    def member(self, node_id: str) -> Member | None:
        """The member with this id, or None."""
        return next((member for member in self.voters if member.node_id == node_id), None)

    def encode(self) -> bytes:
        """Canonical CBOR: `[[node_id, peer_address, client_address], ...]` in id order."""
        return cbor2.dumps([[m.node_id, m.peer_address, m.client_address] for m in self.voters])

    @classmethod
    def decode(cls, data: bytes) -> Configuration:
        """Read what `encode` wrote; InvalidConfiguration if it is anything else."""
        try:
            rows = cbor2.loads(data)
            members = tuple(Member(*row) for row in rows)
        except (cbor2.CBORDecodeError, TypeError, ValueError) as error:
            raise InvalidConfiguration(f"not a configuration: {error}") from error
        return cls(members)


def derive_cluster_id(token: str | bytes, configuration: Configuration) -> bytes:
    """The 16 bytes that name a cluster: SHA-256 over the initial token and member list (FORMATS §1)."""
    raw = token.encode() if isinstance(token, str) else token
    return hashlib.sha256(len(raw).to_bytes(4, "big") + raw + configuration.encode()).digest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who a data folder belongs to; said in every hello and every file header (FORMATS §1)."""

    cluster_id: bytes
    group_id: int
    node_id: str
    incarnation_id: bytes

    def __post_init__(self) -> None:
        assert len(self.cluster_id) == 16, self
        assert len(self.incarnation_id) == 16, self
        assert self.group_id >= 0, self

"""How a member is started: the arguments of `hwm serve`, in one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class MemberAddress:
    """Where a member listens, on 127.0.0.1."""

    peer_port: int
    client_port: int

    @property
    def client(self) -> str:
        return f"127.0.0.1:{self.client_port}"

    @property
    def peer(self) -> str:
        return f"127.0.0.1:{self.peer_port}"


USUAL_STORAGE: tuple[str, ...] = ()
SMALL_STORAGE = ("--snapshot-log-bytes=32768", "--segment-bytes=16384", "--retention-bytes=65536")
"""So small that within seconds segments are deleted, snapshots written, and sent to members that were away."""


def serve_arguments(
    node_id: str,
    data: Path,
    addresses: Mapping[str, MemberAddress],
    dial: Mapping[str, str],
    storage: Sequence[str] = USUAL_STORAGE,
) -> list[str]:
    """What follows `hwm`. `dial`: where this member finds others, if not at their own addresses."""
    members = [f"--member={name}={address.peer}/{address.client}" for name, address in addresses.items()]
    overrides = [f"--dial={name}={address}" for name, address in dial.items()]
    return ["serve", str(data), f"--node-id={node_id}", *members, *overrides, *storage, "--bootstrap"]

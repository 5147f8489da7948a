"""Makes the data folder of a new member of a running cluster, after checking that the member may join.

A new member begins with the newest snapshot of the leader, including the configuration in the snapshot. (An empty state
at index 0 would be wrong for a cluster that was restored from a backup, or whose first state was made by another
build.) The new member is not a voter in that configuration, so it neither campaigns nor founds another cluster. Once
the new member has been added to the cluster, the leader sends it the rest of the log. Before that, the other members
refuse its connections, and the new member tries again.

A member that has lost its disk has also lost the record of its votes. It cannot join under its old id: the cluster
knows the id, and the peers have pinned its old incarnation.

While there is no leader, some peers may pin a new member that waits to be added. If the folder of such a member is made
again, the member has another incarnation. The member can then still join, because the configuration contains the
incarnation of a new voter, and the configuration takes precedence over the pins of the peers. The member cannot join if
the leader has pinned the first incarnation.

See docs/reference/specification.md#13-incarnations-and-pins.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kvstore.access.credentials import Credentials
from kvstore.backup.file import BackupFailed, SnapshotVerifier
from kvstore.backup.save import PAGE_BYTES, TRIES_MAX, is_page
from kvstore.client.client import Client
from kvstore.errors import StoreError
from kvstore.protocol.membership import LEARNER, Membership, MemberView
from kvstore.protocol.messages import snapshot_request
from kvstore.tls import Tls
from raft import Identity, InvalidConfiguration, LogPosition, Member, SnapshotHeader, name_of
from storage import DataFolder, NotInitialized, create_data_folder, open_data_folder

ASK_SECONDS = 10.0
"""The time-out of each request to the cluster, which is long enough for an election."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinConfig:
    """The configuration of a new member: its own advertised addresses, and the client addresses of some members.

    `cluster_id`: the id of the cluster to join (16 bytes). If the id is empty, the member joins the cluster of the
    `endpoints`. `tls`: the certificates with which the new member connects to client ports; None: without TLS.
    `credentials`: a user with the role root, if authentication is on.
    """

    own: Member
    endpoints: tuple[str, ...]
    cluster_id: bytes = b""
    tls: Tls | None = None
    credentials: Credentials | None = None


class JoinRefused(StoreError):
    """The new member must not join. No folder was made. `remedy` describes the next step for the operator."""

    def __init__(self, node_id: str, reason: str, remedy: str) -> None:
        super().__init__(node_id, reason, remedy)
        self.node_id, self.reason, self.remedy = node_id, reason, remedy

    def __str__(self) -> str:
        return f"{self.node_id} cannot join the cluster: {self.reason}"

    @property
    def hint(self) -> str:
        return self.remedy


class MemberRemoved(StoreError):
    """This member was removed from its cluster. A removal is final."""

    def __init__(self, node_id: str) -> None:
        super().__init__(node_id)
        self.node_id = node_id

    def __str__(self) -> str:
        return f"{self.node_id} was permanently removed from its cluster, and has stopped"

    @property
    def hint(self) -> str:
        return (
            "do not start it again; its folder can be deleted. This machine can join as a new member, with a new id "
            "and an empty folder: `hwm serve DIR --join HOST:PORT --member ID=PEER/CLIENT`"
        )


def join_config_of(
    *,
    node_id: str | None,
    members: Sequence[Member],
    endpoints: Sequence[str] = (),
    cluster_id: bytes = b"",
    tls: Tls | None = None,
    credentials: Credentials | None = None,
) -> JoinConfig:
    """Make the `JoinConfig` of a new member. `members`: the new member, and possibly other members. Raises
    InvalidConfiguration."""
    own = [member for member in members if member.node_id == (node_id or member.node_id)]
    if len(own) != 1:
        who = f"no member of the list is {node_id}" if node_id else "it is not clear which of the members it is"
        raise InvalidConfiguration(f"a member that joins needs its own id and addresses: {who}")
    known = [*endpoints, *(member.client_address for member in members if member not in own)]
    if not known:
        raise InvalidConfiguration("a member that joins needs the client address of at least one other member")
    if not own[0].peer_address or not own[0].client_address:
        raise InvalidConfiguration(f"{own[0].node_id} needs a peer address and a client address at which it is found")
    return JoinConfig(
        own=own[0], endpoints=tuple(dict.fromkeys(known)), cluster_id=cluster_id, tls=tls, credentials=credentials
    )


async def open_or_join(folder: Path, joining: JoinConfig) -> DataFolder:
    """Open the folder of a new member. If the folder contains no member, call `make_joining_folder` first.

    Raises StorageError, JoinRefused, BackupFailed, and the errors of a client.
    """
    expected, node_id = joining.cluster_id or None, joining.own.node_id
    try:
        return open_data_folder(folder, expect_cluster_id=expected, expect_node_id=node_id)
    except NotInitialized:
        await make_joining_folder(folder, joining)
    return open_data_folder(folder, expect_cluster_id=expected, expect_node_id=node_id)


async def make_joining_folder(folder: Path, joining: JoinConfig) -> Identity:
    """Request the membership and a snapshot from the leader, and make `folder` the data folder of a new member.

    Raises JoinRefused, StorageError, BackupFailed, and the errors of a client.
    """
    # A client with a cluster id searches for other members when a member belongs to another cluster. With a single
    # address there is nothing to search, so `check_may_join` compares the ids, and reports another cluster at once.
    wanted = joining.cluster_id if len(joining.endpoints) > 1 else b""
    async with client_of(joining.endpoints, joining.tls, joining.credentials, wanted) as client:
        found = await client.membership(of_leader=True, about=joining.own.node_id)
        check_may_join(joining, found)
        header, chunks = await _newest_snapshot(client, found)
    own = joining.own
    if header.configuration.is_voter(own.node_id):
        raise _lost_disk(own.node_id)
    identity = Identity(cluster_id=found.cluster_id, group_id=0, node_id=own.node_id, incarnation_id=os.urandom(16))
    create_data_folder(
        folder,
        identity=identity,
        configuration=header.configuration,
        machine_header=header.machine,
        machine_chunks=chunks,
        position=LogPosition(header.index, header.term),
        joins_as=own,
    )
    return identity


def client_of(endpoints: Sequence[str], tls: Tls | None, credentials: Credentials | None, cluster_id: bytes) -> Client:
    """Return the client with which a member sends requests to its cluster. `credentials`: a user with the role root.
    `cluster_id`: the client uses no member of another cluster; empty: the cluster of the first member that answers."""
    return Client(
        endpoints,
        session=False,
        deadline_seconds=ASK_SECONDS,
        cluster_id=cluster_id,
        tls=tls,
        user=None if credentials is None else credentials.user,
        password=None if credentials is None else credentials.password,
    )


def check_may_join(joining: JoinConfig, found: Membership) -> None:
    """Check whether the leader's membership allows the new member to join. Raises JoinRefused otherwise."""
    own = joining.own
    if joining.cluster_id and found.cluster_id != joining.cluster_id:
        raise JoinRefused(
            own.node_id,
            f"{', '.join(joining.endpoints)} belongs to cluster {found.cluster_id.hex()}, not to "
            f"{joining.cluster_id.hex()}",
            "check the addresses, or leave the cluster id out",
        )
    if own.node_id in found.removed:
        raise JoinRefused(
            own.node_id,
            "a member of this id was removed from it, and an id is never used again",
            "give the new member another id",
        )
    known = found.member(own.node_id)
    if known is None:
        _check_addresses_free(own, found)
        _check_never_met(own.node_id, found)
    elif known.part != LEARNER or known.incarnation_id:
        raise _lost_disk(own.node_id)
    elif (known.peer_address, known.client_address) != (own.peer_address, own.client_address):
        raise JoinRefused(
            own.node_id,
            f"it was added with the addresses {known.peer_address}/{known.client_address}, and is started with "
            f"{own.peer_address}/{own.client_address}",
            "start it with the addresses with which it was added",
        )


def _check_addresses_free(own: Member, found: Membership) -> None:
    for member in found.members:
        if name_of(member.node_id) == name_of(own.node_id):
            continue  # The new member will replace this member, and may have its addresses.
        for address in _shared(own, member):
            raise JoinRefused(
                own.node_id, f"{member.node_id} has the address {address}", "give it addresses of its own"
            )


def _check_never_met(node_id: str, found: Membership) -> None:
    """Refuse a new member if the leader has pinned another folder for its id. The leader would refuse all hellos of the
    new member, because the pinned member may have voted."""
    if found.incarnation_id:
        raise JoinRefused(
            node_id,
            f"the leader, {found.node_id}, knows {node_id} with another data folder, which waited to be added",
            "start it with that folder if it is still there, or give the new member another id",
        )


def _shared(own: Member, member: MemberView) -> list[str]:
    addresses = {member.peer_address, member.client_address}
    return [address for address in (own.peer_address, own.client_address) if address in addresses]


def _lost_disk(node_id: str) -> JoinRefused:
    return JoinRefused(
        node_id,
        f"the cluster has a member {node_id} with a data folder of its own. If its disk was lost, it has forgotten its "
        "votes and must not come back under its old id",
        "start it with its own folder if that is still there (never with an older copy of it), or replace it by a new "
        f"member: `hwm member replace {node_id} NEW=PEER/CLIENT`, and start that one with --join in an empty folder",
    )


async def _newest_snapshot(client: Client, found: Membership) -> tuple[SnapshotHeader, list[bytes]]:
    """Fetch and verify the leader's newest snapshot, and keep one copy in memory. The snapshot may be old, because the
    log contains the later entries."""
    leader = next((member for member in found.members if member.node_id == found.node_id), None)
    address = leader.client_address if leader else ""
    if not address:
        raise BackupFailed(f"the leader, {found.node_id}, has no client address", "give it one: --listen-client")
    for _ in range(TRIES_MAX):
        verifier, chunks = SnapshotVerifier(f"the snapshot of {found.node_id}"), list[bytes]()
        name, offset, size_bytes = None, 0, 1
        while offset < size_bytes:
            page = await client.ask(snapshot_request(address, name, offset=offset, bytes_max=PAGE_BYTES))
            if not is_page(page, offset):
                break  # A newer snapshot has replaced this snapshot.
            name, size_bytes, data = page.fields[:3]
            chunks += verifier.feed(data)
            offset += len(data)
        else:
            facts = verifier.finish()
            assert verifier.header is not None
            if facts.cluster_id != found.cluster_id:
                raise BackupFailed(f"{found.node_id} sent a snapshot of cluster {facts.cluster_id.hex()}")
            return verifier.header, chunks
    raise BackupFailed(f"{found.node_id} has replaced its snapshot {TRIES_MAX} times while it was read", "try again")

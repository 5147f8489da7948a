"""Requests about the member and the cluster. Most of these requests are answered at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from kvstore.protocol.membership import membership_to_fields, read_change
from kvstore.protocol.messages import DecodedRequest, MembersView, RequestKind, members_fields
from kvstore.protocol.session_requests import read_close
from kvstore.protocol.status import MemberStatus, status_to_map
from kvstore.protocol.validation import is_count
from kvstore.server.lease_responses import lease_fields, leases_fields
from kvstore.server.snapshot_pages import SnapshotPages
from kvstore.server.status import limits_fields, membership_of, sessions_fields, status_of
from kvstore.store.machine import KvMachine
from raft import (
    ChangeRefusal,
    ChangeRefused,
    Member,
    MembershipChange,
    Node,
    NotLeader,
    ProtocolError,
    naming_new_voters,
)


class ClusterRequests:
    """Answers requests about the member and the cluster, from the state of one member.

    `own_address` and `own_peer_address`: the addresses at which the member listens for clients and for peers, or empty.
    These addresses are used if the configuration has no such address for this member.
    """

    def __init__(self, node: Node, machine: KvMachine, log_bytes_max: int) -> None:
        self._node, self._machine, self._log_bytes_max = node, machine, log_bytes_max
        self.snapshots = SnapshotPages(node)
        self.client_connections: Callable[[], tuple[int, int]] = lambda: (0, 0)  # The number, and the bound on it.
        self.watches: Callable[[], int] = lambda: 0  # The number of watches.
        # `last_applied` at the last response about limits, and the fields of that response.
        self._limits_at, self._limits_told = -1, tuple[Any, ...]()
        self.duplicate_members: Callable[[], tuple[str, ...]] = tuple  # Ids under which two processes run.
        self.own_address = ""
        self.own_peer_address = ""

    def answer(self, asked: DecodedRequest) -> Sequence[Any] | None:
        """Return the fields of the response; None for an unknown kind of request. A status does not include the state
        hash.

        Raises ProtocolError, RaftError.
        """
        match asked.kind:
            case RequestKind.MEMBERS:
                return members_fields(self._members())
            case RequestKind.STATUS:
                return (status_to_map(self.status()),)
            case RequestKind.READ_LOG:
                return self.log_entries(asked.items)
            case RequestKind.SNAPSHOT:
                return self.snapshots.page(self._machine.revision, asked.items)
            case RequestKind.MEMBERSHIP:
                return self._membership(asked.items)
            case RequestKind.SESSIONS:
                return sessions_fields(self._machine, self._leader_time(), asked.items)
            case RequestKind.LIMITS:
                return self._limits()
            case RequestKind.LEASES:
                return leases_fields(self._machine.leases, self._leader_time(), asked.items)
            case RequestKind.LEASE:
                return lease_fields(self._machine.leases, self._leader_time(), asked.items)
        return None

    def status(self) -> MemberStatus:
        """The status of this member, without the hash of its state."""
        count, bound = self.client_connections()
        return replace(
            status_of(self._node, self._machine),
            client_connections=count,
            client_connections_max=bound,
            duplicate_members=self.duplicate_members(),
            watches=self.watches(),
        )

    def closing(self, items: Sequence[Any]) -> int | None:
        """Return the id of the session that a `close_session` request must close; None if there is no such session.

        Raises ProtocolError, NotLeader.
        """
        session_id, only_unused = read_close(items)
        self._leader_time()
        session = self._machine.sessions.by_id.get(session_id)
        return None if session is None or (only_unused and not session.is_unused) else session_id

    def _leader_time(self) -> int:
        """Return the present leader time. Raises NotLeader."""
        core = self._node.core
        if core.leading_term is None:
            raise NotLeader(core.node_id, core.leader_id)
        return core.leader_time_now()

    def _limits(self) -> Sequence[Any]:
        """Return the replicated limits and their use. The computation examines all sessions, so the result is kept
        until an entry is applied."""
        self._leader_time()
        if self._limits_at != self._node.core.last_applied:
            self._limits_at, self._limits_told = self._node.core.last_applied, limits_fields(self._machine)
        return self._limits_told

    def client_address(self, node_id: str | None) -> str | None:
        """Return the address at which clients reach the member `node_id`; None if the address is not known."""
        member = self._node.core.configuration.member(node_id) if node_id else None
        return self._address_of(member) or None if member else None

    def change_of(self, items: Sequence[Any]) -> MembershipChange:
        """Return the change that a request describes.

        The change contains the incarnation of the data folder of each new voter. If the change adds a member, and the
        configuration has no peer address of the leader (a cluster of one), the change also sets the leader's addresses.

        Raises ProtocolError, ChangeRefused.
        """
        configuration = self._node.core.configuration
        change = naming_new_voters(read_change(items), configuration, self._node.pinned_incarnation)
        own = configuration.member(self._node.identity.node_id)
        updated = [member.node_id for member in change.update]
        if not change.add or own is None or own.peer_address or own.node_id in updated:
            return change
        if not self.own_peer_address:
            raise ChangeRefused(
                ChangeRefusal.UNREACHABLE,
                f"the leader, {own.node_id}, has no port for other members: start it again with --listen-peer "
                "HOST:PORT, at an address where they reach it",
            )
        at = Member(own.node_id, self.own_peer_address, own.client_address or self.own_address, own.incarnation_id)
        return replace(change, update=(*change.update, at))

    def _address_of(self, member: Member) -> str:
        return member.client_address or (self.own_address if member.node_id == self._node.identity.node_id else "")

    def _members(self) -> MembersView:
        core = self._node.core
        members = tuple((member.node_id, self._address_of(member)) for member in core.configuration.members)
        return MembersView(core.leader_id, self.client_address(core.leader_id), core.term, members)

    def _membership(self, items: Sequence[Any]) -> tuple[Any, ...]:
        core = self._node.core
        if items and items[0] and core.leading_term is None:
            raise NotLeader(core.node_id, core.leader_id)
        about = items[1] if len(items) > 1 and type(items[1]) is str else ""
        return membership_to_fields(membership_of(self._node, self._address_of, about))

    def log_entries(self, items: Sequence[Any]) -> tuple[Any, ...]:
        """Return the fields of the response to a `read_log` request: entries, and the high-water mark.

        Raises ProtocolError, NotCommitted, Compacted.
        """
        if len(items) < 2 or not is_count(items[0]) or not is_count(items[1]):
            raise ProtocolError("a read_log request is [request_id, 5, from_index, bytes_max]")
        bytes_max = min(items[1] or self._log_bytes_max, self._log_bytes_max)
        entries = self._node.read_log(items[0], bytes_max)
        rows = [(entry.index, entry.term, int(entry.kind), entry.payload) for entry in entries]
        return rows, self._node.core.commit_index

    def transfer(self, to: str | None) -> str | None:
        """Begin to transfer the leadership. Returns the successor, or None if this member does not lead. A repeated
        request begins no second transfer.

        Raises TransferRefused, NodeStopped.
        """
        core = self._node.core
        begun = core.successor_id
        if core.leading_term is not None and to != core.node_id and not (begun and to in (None, begun)):
            begun = self._node.transfer_leadership(to)
        return begun

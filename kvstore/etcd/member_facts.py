"""What the port for etcd's clients knows about its member."""

from __future__ import annotations

from kvstore.etcd.backend import number_of
from kvstore.monitoring.health import quorum_problem
from kvstore.store.machine import KvMachine
from raft import Node


class MemberFacts:
    """The present state of a member. Implements `Facts`."""

    def __init__(self, node: Node, machine: KvMachine, own_address: str, *, has_tls: bool) -> None:
        self._node, self._machine = node, machine
        self.raft_cluster_id = node.identity.cluster_id
        self.cluster_id = int.from_bytes(self.raft_cluster_id[:8]) or 1
        self.member_id = number_of(self.raft_cluster_id, node.identity.node_id)
        self.own_address, self.scheme = own_address, "https" if has_tls else "http"

    @property
    def term(self) -> int:
        """The term of this member."""
        return self._node.core.term

    @property
    def revision(self) -> int:
        """The revision that the member has applied."""
        return self._machine.revision

    @property
    def leader_id(self) -> str | None:
        """The leader that this member knows."""
        return self._node.core.leader_id

    @property
    def is_leader(self) -> bool:
        """True if this member leads."""
        return self._node.core.leading_term is not None

    @property
    def readiness_problem(self) -> str | None:
        """Why the member is not ready to serve; None if it is ready."""
        core = self._node.core
        return quorum_problem(self._node.status(), core.term_at(core.commit_index))

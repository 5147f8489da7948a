"""The health of a member: liveness for supervisors that restart it, readiness for routers of requests."""

from __future__ import annotations

from collections.abc import Callable

import trio

from raft import Node, NodeStatus, Quorum, Role, Tally

CATCH_UP_SECONDS_MAX = 1.0
"""How long a busy member is given to apply what was committed when it was asked: it is always a moment behind."""

LOOK_AGAIN_SECONDS = 0.01

STOPPING = "it is being stopped"


def liveness_problem(node: Node) -> str | None:
    """The permanent failure that only a restart can help against; None if there is none.

    An answer proves that the event loop turns.
    """
    return None if node.failure is None else f"the node has failed: {node.failure.reason}"


def quorum_problem(status: NodeStatus, committed_term: int | None) -> str | None:
    """Why this member is not part of a working majority right now; None if it is.

    `committed_term`: of the entry at the high-water mark. A leader that has committed nothing in its own term does not
    know yet what is committed (Raft §6.4).
    """
    if status.failure is not None:
        return f"the node has failed: {status.failure}"
    if status.role is Role.FOLLOWER:
        return None if status.leader_id is not None else "it hears no leader"
    if status.role is not Role.LEADER:
        return f"it hears no leader, and is a {status.role.value}"
    if (reason := _missing_voters(status)) is not None:
        return reason
    if committed_term != status.term:
        return "it leads, but has committed nothing in its term yet"
    return None


def _missing_voters(status: NodeStatus) -> str | None:
    """Which voters a leader does not hear enough of: in each half while they change. It also feeds learners, and
    removed members that do not know of it yet; these decide nothing."""
    heard = {peer.peer_id: peer.recent_active for peer in status.peers} | {status.node_id: True}
    for half in Quorum(status.voters, status.outgoing).halves:
        if Quorum(half).tally(heard) is not Tally.WON:
            names = [voter for voter in half if heard.get(voter)]
            hears = f"only {', '.join(names)}" if names else "none"
            return f"it leads, but of the voters {', '.join(half)} it hears {hears}"
    return None


async def readiness_problem(node: Node, is_stopping: Callable[[], bool] = lambda: False) -> str | None:
    """As `quorum_problem`, or how far the member is behind the high-water mark that it knew when it was asked: a read
    that promises more than old state would have to wait for that. A member that begins to stop meanwhile is not ready.

    Takes up to CATCH_UP_SECONDS_MAX; none of it if it waits for a snapshot.
    """
    if is_stopping():
        return STOPPING
    if (reason := _quorum_problem(node)) is not None:
        return reason
    mark = max(node.core.commit_index, node.core.leader_commit_index)
    with trio.move_on_after(CATCH_UP_SECONDS_MAX):
        while _lag_problem(node, mark) is not None and node.incoming_snapshot_index is None and not is_stopping():  # noqa: ASYNC110
            await trio.sleep(LOOK_AGAIN_SECONDS)  # There is no event to wait for, and a probe has time.
    return STOPPING if is_stopping() else _quorum_problem(node) or _lag_problem(node, mark)


def _quorum_problem(node: Node) -> str | None:
    return quorum_problem(node.status(), node.core.term_at(node.core.commit_index))


def _lag_problem(node: Node, mark: int) -> str | None:
    core, snapshot_index = node.core, node.incoming_snapshot_index
    if core.last_applied < mark:
        if snapshot_index is not None:
            return f"it is sent a snapshot up to {snapshot_index}, and has applied up to {core.last_applied}"
        return f"it has applied up to {core.last_applied}, and the high-water mark was {mark}"
    if core.term_at(core.commit_index) != core.term:  # The mark that a new leader tells may be older than others saw.
        return "it knows of nothing yet that was committed in this term"
    return None

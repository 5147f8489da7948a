"""The health of a member: liveness for supervisors that restart members, readiness for routers of requests."""

from __future__ import annotations

from collections.abc import Callable

import trio

from raft import Node, NodeStatus, Quorum, Role, Tally

CATCH_UP_SECONDS_MAX = 1.0
"""The time for which a probe waits until the member has applied the entries that were committed when the probe began. A
busy member is always slightly behind."""

LOOK_AGAIN_SECONDS = 0.01

STOPPING = "it is being stopped"


def liveness_problem(node: Node) -> str | None:
    """Return the permanent failure that requires a restart of the member; None if the member has not failed.

    Any response to the probe proves that the event loop runs.
    """
    return None if node.failure is None else f"the node has failed: {node.failure.reason}"


def quorum_problem(status: NodeStatus, committed_term: int | None) -> str | None:
    """Return the reason why this member is not part of a working majority; None if the member is part of a working
    majority.

    `committed_term`: the term of the entry at the high-water mark. A leader that has not committed any entry of its own
    term does not know yet which entries are committed (Raft §6.4).
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
    """Return the problem if a leader gets no messages from a majority of the voters; None if it gets messages from a
    majority.

    In a joint configuration, a majority of the old voters and a majority of the new voters are needed. Learners are
    ignored, and so are removed members that do not know of their removal.
    """
    heard = {peer.peer_id: peer.recent_active for peer in status.peers} | {status.node_id: True}
    for half in Quorum(status.voters, status.outgoing).halves:
        if Quorum(half).tally(heard) is not Tally.WON:
            names = [voter for voter in half if heard.get(voter)]
            hears = f"only {', '.join(names)}" if names else "none"
            return f"it leads, but of the voters {', '.join(half)} it hears {hears}"
    return None


async def readiness_problem(node: Node, is_stopping: Callable[[], bool] = lambda: False) -> str | None:
    """Return the reason why the member is not ready for requests; None if the member is ready.

    The reason is either a `quorum_problem` or a lag: the member has not applied the entries up to the high-water mark
    that it knew when the probe began. Linearizable reads would have to wait for these entries. A member that begins to
    stop during the probe is not ready. The probe takes at most CATCH_UP_SECONDS_MAX, and does not wait for an incoming
    snapshot.
    """
    if is_stopping():
        return STOPPING
    if (reason := _quorum_problem(node)) is not None:
        return reason
    mark = max(node.core.commit_index, node.core.leader_commit_index)
    with trio.move_on_after(CATCH_UP_SECONDS_MAX):
        while _lag_problem(node, mark) is not None and node.incoming_snapshot_index is None and not is_stopping():  # noqa: ASYNC110
            await trio.sleep(LOOK_AGAIN_SECONDS)  # Polling is used, because there is no event to wait for.
    return STOPPING if is_stopping() else _quorum_problem(node) or _lag_problem(node, mark)


def _quorum_problem(node: Node) -> str | None:
    return quorum_problem(node.status(), node.core.term_at(node.core.commit_index))


def _lag_problem(node: Node, mark: int) -> str | None:
    core, snapshot_index = node.core, node.incoming_snapshot_index
    if core.last_applied < mark:
        if snapshot_index is not None:
            return f"it is sent a snapshot up to {snapshot_index}, and has applied up to {core.last_applied}"
        return f"it has applied up to {core.last_applied}, and the high-water mark was {mark}"
    if core.term_at(core.commit_index) != core.term:  # A new leader's high-water mark may be too low.
        return "it knows of nothing yet that was committed in this term"
    return None

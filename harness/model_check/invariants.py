"""The rules that must hold in every state of the cluster, after any events (Raft Figure 3).

See docs/reference/specification.md#3-order-of-durability.
"""

from __future__ import annotations

from harness.model_check.ghost_state import GhostState
from harness.model_check.local_states import Facts
from harness.sim.engine.errors import require
from raft import Role


def check_cluster(members: list[Facts], history: GhostState) -> None:
    """Raise Violation if a rule about several members is broken."""
    _check_log_matching(members)
    for index, (term, _) in enumerate(history.committed, start=1):
        holders = sum(1 for member in members if _holds(member.durable_log, index, term))
        text = f"entry {index} of term {term} is committed, and durable on {holders} of {len(members)} members"
        require(holders > len(members) // 2, "committed means durable on a majority", text)
    for place, member in enumerate(members, start=1):
        if member.role is Role.LEADER:
            _check_completeness(place, member, history)


def _check_log_matching(members: list[Facts]) -> None:
    """Raft §5.3: logs with the same term at an index are equal up to that index, even after a crash of any member."""
    logs = {member.log for member in members} | {member.durable_log for member in members}
    for one in logs:
        for other in logs:
            for index in range(min(len(one), len(other)), 0, -1):
                if one[index - 1] == other[index - 1]:
                    text = f"both have term {one[index - 1]} at {index}: {list(one)} and {list(other)}"
                    require(one[:index] == other[:index], "log matching", text)
                    break


def _check_completeness(place: int, leader: Facts, history: GhostState) -> None:
    """Raft §5.4: an entry that was committed in a term is in the logs of the leaders of all later terms."""
    for index, (term, committed_in) in enumerate(history.committed, start=1):
        if committed_in <= leader.term:
            text = (
                f"s{place} leads term {leader.term} without entry {index} of term {term}, committed in {committed_in}"
            )
            require(_holds(leader.log, index, term), "leader completeness", text)


def _holds(log: tuple[int, ...], index: int, term: int) -> bool:
    return len(log) >= index and log[index - 1] == term

"""The answers of the members to writes, in words."""

from __future__ import annotations

from harness.scenarios.cluster_stage import ClusterStage
from kvstore import is_under_replicated
from raft import Accepted, Acknowledge, Applied, AppliedInSync, Refused, Unknown

ANSWERS = {
    "waiting": "it has no answer yet",
    "none": "its level is none, so it never gets an answer",
    "accepted": "the entry is on the leader's disk",
    "applied": "the entry is committed and applied",
    "acknowledged by MEMBER…": "the entry is committed and applied, and on the disks of these members",
    "under-replicated by MEMBER…": "the same, but these are fewer members than the verb `minimum` asks for",
    "refused": "it certainly has no effect",
    "unknown": "the leader does not know whether it has an effect",
    "unanswered": "the member ended before it gave an answer",
}
"""The answers as `expect answer` writes them, and their meanings."""


def answer(word: str, stage: ClusterStage) -> str:
    """Return the present answer to the write of `word`, in the words of `ANSWERS`."""
    written = stage.writes[word]
    if not written.ticket:
        return "refused"
    match written.host.completions.get(written.ticket):
        case Accepted():
            return "accepted"
        case Applied():
            return "applied"
        case AppliedInSync(acknowledged_by=members):
            is_short = is_under_replicated(members, stage.min_in_sync)
            return f"{'under-replicated' if is_short else 'acknowledged'} by {' '.join(members)}"
        case Refused():
            return "refused"
        case Unknown():
            return "unknown"
    if written.level is Acknowledge.NONE:
        return "none"
    node_id = written.host.node_id
    has_ended = node_id in stage.down or stage.members[node_id] is not written.host
    return "unanswered" if has_ended else "waiting"

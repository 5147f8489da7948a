"""The answers of the members to writes, in words."""

from __future__ import annotations

from harness.scenarios.cluster_stage import ClusterStage
from raft import Accepted, Acknowledge, Applied, AppliedInSync, Refused, Unknown

ANSWERS = {
    "waiting": "it has no answer yet",
    "none": "its level is none, so it never gets an answer",
    "accepted": "the entry is on the leader's disk",
    "applied": "the entry is committed and applied",
    "acknowledged by MEMBER…": "the entry is committed and applied, and on the disks of these members",
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
            return f"acknowledged by {' '.join(members)}"
        case Refused():
            return "refused"
        case Unknown():
            return "unknown"
    if written.level is Acknowledge.NONE:
        return "none"
    node_id = written.host.node_id
    has_ended = node_id in stage.down or stage.members[node_id] is not written.host
    return "unanswered" if has_ended else "waiting"

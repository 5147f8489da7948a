"""The expectations of a scenario: `expect WHAT MEMBER… = VALUE` expects the same value for every named member."""

from __future__ import annotations

from collections.abc import Callable

from harness.core_host.node_host import NodeHost
from harness.scenarios.answers import answer
from harness.scenarios.cluster_stage import ClusterStage, StagedMember
from harness.scenarios.errors import Mismatch
from harness.scenarios.language import Step
from raft import Entry, EntryKind, TraceEvent, decode_item

Look = Callable[[StagedMember], str]


def _terms(entries: tuple[Entry, ...]) -> str:
    return " ".join(str(entry.term) for entry in entries)


def _words(entries: list[Entry]) -> str:
    commands = [entry for entry in entries if entry.kind is EntryKind.COMMANDS]
    return " ".join(str(word) for entry in commands for word in decode_item(entry.payload)[1:])


def _in_sync(member: StagedMember) -> str:
    copies = member.core.copies()
    return "" if copies is None else " ".join(copies.in_sync_ids)


def _in_sync_index(member: StagedMember) -> str:
    copies = member.core.copies()
    return "" if copies is None else str(copies.in_sync_index)


LOOKS: dict[str, tuple[str, Look]] = {
    "role": ("follower, pre-candidate, candidate or leader", lambda member: member.core.role.value),
    "term": ("its current term", lambda member: str(member.core.term)),
    "vote": ("who has its vote in this term, or nobody", lambda member: member.core.voted_for or "nobody"),
    "leader": ("whom it follows, or nobody", lambda member: member.core.leader_id or "nobody"),
    "log": ("the terms of its entries", lambda member: _terms(member.disk.appended.entries)),
    "durable": ("the terms of its entries that are on disk", lambda member: _terms(member.disk.durable.entries)),
    "end": ("the index of its last entry", lambda member: str(len(member.disk.appended.entries))),
    "disk": ("the index of its last entry that is on disk", lambda member: str(len(member.disk.durable.entries))),
    "commit": ("its high-water mark", lambda member: str(member.core.commit_index)),
    "low": ("its low-water mark", lambda member: str(member.core.low_watermark)),
    "applied": ("the end of what its state machine was given", lambda member: str(member.core.last_applied)),
    "visible": ("the commands that its state machine was given", lambda member: _words(member.applied)),
    "in-sync": ("a leader's view: the voters in sync; nothing for other members", _in_sync),
    "in-sync-index": ("a leader's view: the last index that is on the disk of all voters in sync", _in_sync_index),
    "holds": ("the commands in its log", lambda member: _words(list(member.disk.appended.entries))),
}

OTHERS = {
    "read": "expect read NAME = open, ready or failed",
    "shown": "expect shown NAME = the commands that the read showed",
    "answer": "expect answer WORD… = waiting, none, accepted, applied, acknowledged by MEMBER…, "
    "under-replicated by MEMBER…, refused, unknown or "
    "unanswered (`write`)",
    "wire": "expect wire LINK [KIND] = how many messages are there",
    "noticed": "expect noticed EVENT MEMBER… = how often it said so (vote_refused, truncated, append_rejected, …)",
}


def expect(step: Step, stage: ClusterStage) -> None:
    """Check one expectation.

    Raises Mismatch if the expectation does not hold, and BadScenario if the line has an error.
    """
    if "=" not in step.words:
        raise step.wrong(f"`{step.text}` says no value", "write `expect WHAT MEMBER… = VALUE`")
    at = step.words.index("=")
    subject, expected = step.words[:at], " ".join(step.words[at + 1 :])
    if not subject:
        raise step.wrong(f"`{step.text}` does not say what is expected", f"there are: {', '.join((*LOOKS, *OTHERS))}")
    what = step.one_of(subject[0], (*LOOKS, *OTHERS), "thing to expect")
    text = f"expect {' '.join(subject)}"
    if what in LOOKS:
        _, look = LOOKS[what]
        for member in step.members(subject[1:], stage):
            _compare(step, f"{text}: {member}", expected, look(stage.members[member]))
    elif what == "read":
        _compare(step, text, expected, _read(step, subject, stage))
    elif what == "shown":
        _compare(step, text, expected, _shown(step, subject, stage))
    elif what == "answer":
        for word in subject[1:] or [""]:
            written = step.one_of(word, stage.writes, "word that was written")
            _compare(step, f"{text}: {written}", expected, answer(written, stage))
    elif what == "wire":
        wanted = step.letters(subject[1:], stage)
        _compare(step, text, expected, str(sum(1 for letter in stage.wire if wanted(letter))))
    else:
        for member in step.members(subject[2:], stage):
            events = stage.members[member].events
            _compare(step, f"{text}: {member}", expected, str(_count(subject[1], events)))


def _read(step: Step, subject: tuple[str, ...], stage: ClusterStage) -> str:
    name = step.one_of(subject[1] if len(subject) > 1 else "", stage.reads, "read")
    node_id, life, ticket = stage.reads[name]
    member = stage.members[node_id]
    if life != stage.lives[node_id] or ticket in member.reads_failed:
        return "failed"
    return "ready" if ticket in member.reads_ready else "open"


def _shown(step: Step, subject: tuple[str, ...], stage: ClusterStage) -> str:
    name = step.one_of(subject[1] if len(subject) > 1 else "", stage.reads, "read")
    node_id, life, ticket = stage.reads[name]
    member = stage.members[node_id]
    if not isinstance(member, NodeHost):
        raise step.wrong("a lone core shows nothing", "write `cluster … with nodes`")
    return " ".join(member.shown.get(ticket, ())) if life == stage.lives[node_id] else ""


def _count(name: str, events: list[TraceEvent]) -> int:
    return sum(1 for event in events if event.name == name)


def _compare(step: Step, text: str, expected: str, actual: str) -> None:
    if expected == "nothing":
        expected = ""
    if expected != actual:
        raise Mismatch(step.path, step.line, text, expected, actual)

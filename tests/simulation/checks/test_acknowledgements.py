"""Each rule about acknowledgement levels fails if a node, a service or a client gives a wrong answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import cbor2
import pytest

from harness.sim.checks.acknowledgements.fates import COMMITTED_TOLD, LOST, LOST_TOLD, FateChecker
from harness.sim.checks.acknowledgements.levels import LEFT, OWN_END, LevelChecker
from harness.sim.checks.acknowledgements.responses import UNDER_REPLICATED, ResponseChecker
from harness.sim.checks.cluster import SafetyChecker
from harness.sim.checks.history import HistoryChecker
from harness.sim.world.context import MachineView
from harness.sim.world.probes import NodeProbe
from kvstore import Code, CommandKind, EntryFate, Put, RequestKind
from raft import (
    Accepted,
    Acknowledge,
    Applied,
    AppliedInSync,
    Completion,
    Copies,
    Entry,
    EntryKind,
    Node,
    NotLeader,
    Refused,
    TraceEvent,
    frame,
)
from tests.simulation.support.stage import Stage, broken_rule

TICKET = 1
LATER_NS = 60_000_000_000


class LevelStage:
    """The leader of a quiet cluster. A test sets the answers of the leader's node. The last entry contains the leader's
    write."""

    def __init__(self) -> None:
        self.stage = stage = Stage()
        self.names = tuple(sorted(stage.world.members))
        self.checker = LevelChecker(stage.world, stage.leader, stage.world.plan.raft)
        self.index, self.term = stage.index, stage.term
        self.command = stage.world.safety.payload_of(self.index, self.term)
        self.leading_term: int | None = self.term
        self.copies: Copies | None = Copies(tuple((name, self.index) for name in self.names), self.names)
        self.now = 0
        self.tells()

    def node(self) -> Node:
        core = SimpleNamespace(leading_term=self.leading_term)
        return cast(Node, SimpleNamespace(core=core, copies=lambda: self.copies, is_stopped=False))

    def tells(self, *completions: Completion, events: tuple[TraceEvent, ...] = ()) -> None:
        self.checker.told(self.node(), completions, events, self.now)

    def takes(self, level: Acknowledge, *, command: bytes | None = None) -> None:
        self.checker.proposed(self.node(), TICKET, self.command if command is None else command, level)

    def applies(self) -> None:
        self.checker.applied(Entry(self.index, self.term, EntryKind.COMMANDS, self.command), self.now)

    def steps_down(self) -> None:
        self.leading_term = self.copies = None

    def later(self) -> None:
        """Let time pass in steps of a heartbeat interval, so that it does not count as a pause."""
        interval_ns = self.stage.world.plan.raft.heartbeat_interval_ns
        for _ in range(LATER_NS // interval_ns):
            self.now += interval_ns
            self.checker.ticked(self.now)

    def accepts(self, index: int, term: int, *, command: bytes | None = None) -> None:
        self.takes(Acknowledge.LEADER, command=command)
        self.tells(Accepted(TICKET, index, term))

    def names_members(self, *names: str) -> None:
        self.takes(Acknowledge.IN_SYNC)
        self.applies()
        self.tells(AppliedInSync(TICKET, self.index, None, names))

    def ends(self, level: Acknowledge, completion: Completion) -> None:
        self.takes(level)
        self.tells(completion)

    def takes_with_too_few(self) -> None:
        leader = self.stage.leader
        leader.service = cast(Any, object())
        assert leader.machine is not None
        limits = replace(leader.machine.limits, min_in_sync=len(self.names) + 1)
        leader.machine = cast(Any, SimpleNamespace(limits=limits))
        self.takes(Acknowledge.IN_SYNC)

    def names_a_member_that_lacks_it(self) -> None:
        del self.stage.other.logs.durable.terms[-1]
        self.names_members(*self.names)

    def names_somebody_else(self) -> None:
        founding = self.stage.world.safety.members._founding
        voters = tuple(each for each in founding.voters if each.node_id != self.stage.other.node_id)
        self.stage.world.safety.members._founding = replace(founding, voters=voters)
        self.names_members(*self.names)

    def names_too_few(self) -> None:
        assert self.copies is not None
        self.copies = replace(self.copies, in_sync_ids=(self.stage.leader.node_id,))
        self.later()
        self.names_members(self.stage.leader.node_id)

    def accepts_what_is_not_durable(self) -> None:
        del self.stage.leader.logs.durable.terms[-1]
        self.accepts(self.index, self.term)

    def counts_too_much_of_itself(self) -> None:
        self.copies = Copies(((self.stage.leader.node_id, self.index + 1),), self.names)
        self.takes(Acknowledge.IN_SYNC)
        self.tells()

    def begins_with_too_few(self) -> None:
        assert self.copies is not None
        self.copies = replace(self.copies, in_sync_ids=self.names[:1])
        self.takes(Acknowledge.IN_SYNC)
        self.tells()

    def forgets_a_write(self) -> None:
        self.takes(Acknowledge.IN_SYNC)
        self.applies()
        self.steps_down()
        self.tells()

    def waits_for_ever(self) -> None:
        self.takes(Acknowledge.IN_SYNC)
        self.applies()
        self.later()
        self.tells()

    def accepts_when_deposed(self) -> None:
        self.steps_down()
        self.stage.world.safety._committed.pop()
        self.accepts(self.index, self.term)


Act = Callable[[LevelStage], object]

WRONG: dict[str, list[Act]] = {
    "a write is not appended while too few members are in sync": [LevelStage.takes_with_too_few],
    "a write of level NONE has no answer": [
        lambda s: s.ends(Acknowledge.NONE, Applied(TICKET, s.index, None)),
        lambda s: s.ends(Acknowledge.NONE, Refused(TICKET, ValueError())),  # type: ignore[arg-type]
    ],
    OWN_END: [
        lambda s: s.ends(Acknowledge.IN_SYNC, Applied(TICKET, s.index, None)),
        lambda s: s.ends(Acknowledge.IN_SYNC, Accepted(TICKET, s.index, s.term)),
        lambda s: s.ends(Acknowledge.LEADER, AppliedInSync(TICKET, s.index, None, s.names)),
    ],
    "only the leader of its term accepts a write": [
        lambda s: s.accepts(s.index, s.term + 1),
        LevelStage.accepts_when_deposed,
    ],
    "an accepted write is at its position": [lambda s: s.accepts(s.index, s.term, command=b"another command")],
    "an accepted write is durable on its leader": [LevelStage.accepts_what_is_not_durable],
    "a write is acknowledged once it is applied": [
        lambda s: s.ends(Acknowledge.IN_SYNC, AppliedInSync(TICKET, s.index, None, s.names)),
    ],
    "a member that an answer names holds the write durably": [
        LevelStage.names_a_member_that_lacks_it,
        lambda s: s.names_members(*s.names, "nobody"),
    ],
    "a member that an answer names is a voter": [LevelStage.names_somebody_else],
    "an answer of level IN_SYNC names every member in sync": [lambda s: s.names_members(*s.names[:2])],
    "an answer of level IN_SYNC names a majority": [LevelStage.names_too_few],
    "a leader counts only what its own disk has": [LevelStage.counts_too_much_of_itself],
    "a new leader counts every voter as in sync": [LevelStage.begins_with_too_few],
    "a write that waits is answered when its leader steps down": [LevelStage.forgets_a_write],
    "a write waits for members in sync no longer than for their lag": [LevelStage.waits_for_ever],
}


@pytest.mark.parametrize(("rule", "place"), [(rule, place) for rule in WRONG for place in range(len(WRONG[rule]))])
def test_an_end_that_a_level_forbids_is_seen(rule: str, place: int) -> None:
    """docs/reference/specification.md#910-acknowledgement-levels."""
    stage = LevelStage()
    with broken_rule(rule):
        WRONG[rule][place](stage)


def test_what_the_levels_allow_is_accepted() -> None:
    stage = LevelStage()
    stage.accepts(stage.index, stage.term)
    stage.names_members(*stage.names)

    stage.takes(Acknowledge.IN_SYNC)
    stage.applies()
    stage.tells()
    stage.tells(AppliedInSync(TICKET, stage.index, None, stage.names), events=(TraceEvent("in_sync_left", {}),))
    assert LEFT in stage.stage.world.covered

    stage.steps_down()
    stage.accepts(stage.index, stage.term)  # A former leader may accept this entry, as it is committed.


def test_a_pause_of_the_leader_is_no_waiting_time() -> None:
    stage = LevelStage()
    stage.takes(Acknowledge.IN_SYNC)
    stage.applies()
    stage.checker.ticked(0)
    stage.now = LATER_NS
    stage.checker.ticked(stage.now)
    stage.tells()


def test_only_the_first_of_two_equal_proposals_is_applied_by_one_entry() -> None:
    """If a client repeats a request, the bytes are the same."""
    stage = LevelStage()
    stage.takes(Acknowledge.IN_SYNC)
    stage.checker.proposed(stage.node(), TICKET + 1, stage.command, Acknowledge.IN_SYNC)
    stage.applies()
    stage.tells(AppliedInSync(TICKET, stage.index, None, stage.names))
    stage.later()
    stage.tells()


def test_an_equal_proposal_of_another_level_is_applied_first() -> None:
    """Two clients delete the same key, the first one at level MAJORITY. Only the first write is in the entry. So the
    second write does not wait for members in sync when the leader steps down (seed 30000242)."""
    stage = LevelStage()
    stage.checker.proposed(stage.node(), TICKET - 1, stage.command, Acknowledge.MAJORITY)
    stage.takes(Acknowledge.IN_SYNC)
    stage.applies()
    stage.steps_down()
    stage.tells()


def test_a_refused_proposal_is_in_no_entry() -> None:
    """The entry contains the second of two equal proposals, because the first one was refused."""
    stage = LevelStage()
    stage.checker.proposed(stage.node(), TICKET - 1, stage.command, Acknowledge.MAJORITY)
    stage.tells(Refused(TICKET - 1, NotLeader("s1", None)))
    stage.names_members(*stage.names)


def test_two_equal_proposals_may_be_in_one_entry() -> None:
    stage = LevelStage()
    stage.takes(Acknowledge.IN_SYNC)
    stage.checker.proposed(stage.node(), TICKET + 1, stage.command, Acknowledge.IN_SYNC)
    twice = Entry(stage.index, stage.term, EntryKind.COMMANDS, stage.command + stage.command)
    stage.checker.applied(twice, stage.now)
    stage.tells(*(AppliedInSync(ticket, stage.index, None, stage.names) for ticket in (TICKET, TICKET + 1)))


# Responses.


class Wire:
    """One connection with one request of a level, and the answers of its member."""

    def __init__(self, level: Acknowledge, *, min_in_sync: int = 2) -> None:
        limits = SimpleNamespace(min_in_sync=min_in_sync)
        self.member = cast(MachineView, SimpleNamespace(node_id="s1", machine=SimpleNamespace(limits=limits)))
        self.covered: set[str] = set()
        self.checker = ResponseChecker(self.covered.add)
        self.checker.received(
            1, frame(b"hello") + frame(cbor2.dumps([7, int(RequestKind.ACKNOWLEDGED), int(level), []]))
        )
        self.checker.sent(self.member, 1, frame(b"hello"))

    def answers(self, code: Code, *fields: object, connection_id: int = 1) -> None:
        self.checker.sent(self.member, connection_id, frame(cbor2.dumps([7, int(code), 5, 0, "s1", *fields])))


def test_a_response_at_level_none_is_seen() -> None:
    for code in (Code.OK, Code.NOT_LEADER):
        with broken_rule("nobody responds to a request of level NONE"):
            Wire(Acknowledge.NONE).answers(code)


def test_a_result_at_level_leader_is_seen() -> None:
    with broken_rule("an accepted write has no result"):
        Wire(Acknowledge.LEADER).answers(Code.OK)
    Wire(Acknowledge.LEADER).answers(Code.ACCEPTED, 9, 3)


def test_a_response_with_too_few_names_says_so() -> None:
    rule = "if too few members hold a write, the response says so"
    with broken_rule(rule):
        Wire(Acknowledge.IN_SYNC).answers(Code.OK, ["s1"])
    with broken_rule(rule):
        Wire(Acknowledge.IN_SYNC).answers(Code.UNDER_REPLICATED, 2, ["s1", "s2"])
    Wire(Acknowledge.IN_SYNC).answers(Code.OK, ["s1", "s2"])
    wire = Wire(Acknowledge.IN_SYNC)
    wire.answers(Code.UNDER_REPLICATED, 2, ["s1"])
    assert wire.covered == {UNDER_REPLICATED}


# Outcomes.


def a_log(*terms: int) -> SafetyChecker:
    """A committed log of entries with these terms."""
    safety = SafetyChecker()
    for index, term in enumerate(terms, start=1):
        safety.committed("s1", index, term, term)
    return safety


@pytest.mark.parametrize(
    ("rule", "index", "term", "fate"),
    [
        ("an entry that an answer calls committed is committed", 2, 1, EntryFate.COMMITTED),
        ("an entry that an answer calls committed is committed", 3, 2, EntryFate.COMMITTED),
        ("an entry that an answer calls lost is lost", 2, 2, EntryFate.LOST),
        ("an entry that an answer calls lost is lost", 3, 2, EntryFate.LOST),
        ("only a decided entry is forgotten", 3, 2, EntryFate.FORGOTTEN),
    ],
)
def test_a_false_outcome_is_seen(rule: str, index: int, term: int, fate: EntryFate) -> None:
    with broken_rule(rule):
        FateChecker(a_log(1, 2), lambda _: None).told(index, term, fate)


def test_true_outcomes_are_accepted() -> None:
    covered = set[str]()
    fates = FateChecker(a_log(1, 2), covered.add)
    fates.accepted.add((2, 1))
    for index, term, fate in ((2, 2, EntryFate.COMMITTED), (2, 1, EntryFate.LOST), (5, 1, EntryFate.LOST)):
        fates.told(index, term, fate)
        fates.told(index, term, EntryFate.OPEN)  # A member with an older log may also answer OPEN.
    fates.cover_lost()
    assert covered == {COMMITTED_TOLD, LOST_TOLD, LOST}


def test_an_outcome_that_changes_is_seen() -> None:
    safety = a_log(1, 2)
    fates = FateChecker(safety, lambda _: None)
    fates.told(2, 2, EntryFate.COMMITTED)
    safety._committed[2] = 3
    with broken_rule("the final outcome of an entry never changes"):
        fates.told(2, 2, EntryFate.LOST)


def test_a_lost_write_that_was_carried_out_is_seen() -> None:
    history = HistoryChecker(1, lambda _: None)
    history.called("c1", 0, Put(b"k", b"v"), 0)
    history.carried_out(1, [0, 0, 0, int(CommandKind.PUT), b"k", b"v"], (0, 2))
    with broken_rule("a write that an answer reports as lost is never carried out"):
        history.lost(Put(b"k", b"v"))


def test_a_lost_write_that_is_carried_out_later_is_seen() -> None:
    history = HistoryChecker(1, lambda _: None)
    history.called("c1", 0, Put(b"k", b"v"), 0)
    history.lost(Put(b"k", b"v"))
    with broken_rule("a request that failed for certain is never carried out"):
        history.carried_out(1, [0, 0, 0, int(CommandKind.PUT), b"k", b"v"], (0, 2))


# The end of a run.


def test_a_request_that_stays_open_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    monkeypatch.setattr(NodeProbe, "has_open_acknowledgements", True)
    with broken_rule("no request stays open in a healed cluster"):
        stage.world._check_acknowledgements()


def test_a_voter_that_stays_out_of_sync_is_seen() -> None:
    stage = Stage()
    stage.follower.scheduler.pause(LATER_NS)
    stage.run(2_000)
    with broken_rule("every voter that works is in sync in the end"):
        stage.world._check_acknowledgements()


def test_a_quiet_cluster_ends_well() -> None:
    Stage().world._check_acknowledgements()

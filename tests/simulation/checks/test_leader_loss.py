"""The rules about the end of a leader's connections can fail. For each rule, one test breaks it and one test keeps
it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.sim.checks.leader_loss import BEGAN_AN_ELECTION, WAS_WRONG, LeaderLossChecker
from harness.sim.engine.errors import Violation
from harness.sim.plan.plan import MILLISECOND_NS, Fault
from raft import (
    AppendEntries,
    Configuration,
    Member,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    RaftConfig,
    RaftCore,
    Role,
    TraceEvent,
)
from tests.simulation.support.stage import Stage

CONFIG = RaftConfig(heartbeat_interval_ns=10, election_timeout_min_ns=100, election_timeout_max_ns=200)
THREE = Configuration.of([Member("s1"), Member("s2"), Member("s3")])
HEARD = 1_000
GRANTS = "a member that hears a leader grants no pre-vote"
STANDS = "a candidate has the pre-votes of a majority"
LEASE = "where leaders read by lease no hint counts"
OFTEN = "at most one hint counts per election time-out"
WHOSE = "only the end of the leader's connections is a hint"


def core(*, leader: str | None = "s2", term: int = 1, role: Role = Role.FOLLOWER, lease_ns: int = 0) -> RaftCore:
    """The fields of s1's core that the watch reads."""
    members = replace(THREE, lease_ns=lease_ns)
    seen = SimpleNamespace(node_id="s1", term=term, role=role, leader_id=leader, configuration=members)
    return cast(RaftCore, seen)


def heartbeat(term: int = 1) -> Message:
    return AppendEntries(
        term=term, prev_index=0, prev_term=0, entries=(), commit_index=0, low_watermark=0, read_counter=0
    )


def asks(next_term: int = 2) -> Message:
    return PreVoteRequest(term=next_term - 1, next_term=next_term, last_index=0, last_term=0)


def answers(next_term: int = 2, *, granted: bool = True) -> Message:
    return PreVoteResponse(term=1, next_term=next_term, granted=granted)


class Watched:
    """The watch of s1, which heard s2, the leader of term 1, at HEARD."""

    def __init__(self) -> None:
        leads = SimpleNamespace(core=core(role=Role.LEADER))
        self.covered: set[str] = set()
        self.world = SimpleNamespace(members={"s2": SimpleNamespace(node=leads)}, cover=self.covered.add)
        self.checker = LeaderLossChecker(cast(Any, self.world), "s1", CONFIG, lambda: (("s1", "s2", "s3"),))
        self.checker.received(core(), "s2", heartbeat(), HEARD)

    def hint(self, now: int, *, of: str = "s2", ended: str = "s2", lease_ns: int = 0) -> None:
        self.checker.connections_ended(ended)
        lost = TraceEvent("leader_connection_lost", {"leader_id": of, "term": 1})
        self.checker.told(core(lease_ns=lease_ns), lost, now)
        self.checker.step_is_over()

    def asked_at(self, now: int, **changes: Any) -> None:
        """Let s3 ask for a pre-vote, and let s1 grant this pre-vote."""
        self.checker.received(core(**changes), "s3", asks(), now)
        self.checker.sent("s3", answers())

    def stands(self, term: int = 2, *, early: bool = True, transfer: bool = False) -> None:
        asks_for = TraceEvent("became_pre_candidate", {"next_term": term, "early": early, "term": term - 1})
        self.checker.told(core(), asks_for, HEARD)
        self.checker.told(core(), TraceEvent("became_candidate", {"transfer": transfer, "term": term}), HEARD)


def test_a_member_that_has_just_heard_its_leader_grants_no_pre_vote() -> None:
    """The member refuses during exactly the minimum election time-out."""
    with pytest.raises(Violation, match=GRANTS):
        Watched().asked_at(HEARD + CONFIG.election_timeout_min_ns - 1)
    with pytest.raises(Violation, match=GRANTS):
        Watched().asked_at(HEARD + 10**6, role=Role.LEADER)

    Watched().asked_at(HEARD + CONFIG.election_timeout_min_ns)
    Watched().asked_at(HEARD + 1, leader=None)
    Watched().asked_at(HEARD + 1, term=2)
    Watched().checker.sent("s3", answers(granted=False))


def test_after_a_hint_it_may_until_the_leader_speaks_again() -> None:
    watched = Watched()
    watched.hint(HEARD + 1)
    watched.asked_at(HEARD + 2)

    watched.checker.received(core(), "s2", heartbeat(), HEARD + 3)
    watched.checker.received(core(), "s3", asks(3), HEARD + 4)

    with pytest.raises(Violation, match=GRANTS):
        watched.checker.sent("s3", answers(3))


def test_a_candidate_needs_the_pre_votes_of_a_majority_unless_it_was_asked_to_stand() -> None:
    watched = Watched()
    with pytest.raises(Violation, match=STANDS):
        watched.stands()
    watched.checker.received(core(), "s3", answers(granted=False), HEARD)
    watched.checker.received(core(), "s3", answers(next_term=3), HEARD)
    with pytest.raises(Violation, match=STANDS):
        watched.stands()

    watched.stands(transfer=True)
    watched.checker.received(core(), "s3", answers(), HEARD)
    watched.stands(early=False)
    assert BEGAN_AN_ELECTION not in watched.covered
    watched.stands(term=3)
    assert BEGAN_AN_ELECTION in watched.covered


def test_where_leaders_read_by_lease_no_hint_is_heeded() -> None:
    with pytest.raises(Violation, match=LEASE):
        Watched().hint(HEARD + 1, lease_ns=1)


def test_hints_are_as_far_from_each_other_as_the_least_election_time_out() -> None:
    for apart_ns in (CONFIG.election_timeout_min_ns - 1, CONFIG.election_timeout_min_ns):
        watched = Watched()
        watched.hint(HEARD + 1)
        watched.checker.received(core(), "s2", heartbeat(), HEARD + 2)
        assert WAS_WRONG in watched.covered
        if apart_ns < CONFIG.election_timeout_min_ns:
            with pytest.raises(Violation, match=OFTEN):
                watched.hint(HEARD + 1 + apart_ns)
        else:
            watched.hint(HEARD + 1 + apart_ns)


@pytest.mark.parametrize(("of", "ended"), [("s3", "s3"), ("s2", "s3")])
def test_only_the_end_of_the_leaders_connections_is_a_hint(of: str, ended: str) -> None:
    with pytest.raises(Violation, match=WHOSE):
        Watched().hint(HEARD + 1, of=of, ended=ended)


def test_a_hint_of_a_leader_that_is_dead_was_right_though_a_late_frame_of_it_arrives() -> None:
    watched = Watched()
    watched.world.members["s2"].node = None
    watched.hint(HEARD + 1)
    watched.checker.received(core(), "s2", heartbeat(), HEARD + 2)

    assert watched.covered == set()


# In a world


@pytest.mark.parametrize("kind", ["kill", "lose power"])
def test_killed_leaders_are_missed_at_once_and_those_without_power_after_a_time_out(kind: str) -> None:
    """A machine that loses its power closes no connection."""
    stage = Stage()
    fault = Fault(at_ns=0, kind=kind, duration_ns=10_000 * MILLISECOND_NS, target=None, shape=1.0)
    stage.world.processes.take_down([stage.leader], fault)
    stage.run(200)

    followers = (stage.follower, stage.other)
    assert any(Stage.node(each).core.role is Role.LEADER for each in followers)
    assert ("leader_connection_lost" in stage.world.covered) is (kind == "kill")
    assert (BEGAN_AN_ELECTION in stage.world.covered) is (kind == "kill")


def test_a_member_whose_connections_are_dropped_while_all_live_disturbs_nobody() -> None:
    """The other members may still hear the leader. If the leader loses its connections with all of them, it must be
    replaced."""
    stage = Stage()
    for number in range(10):
        fault = Fault(at_ns=0, kind="drop connections", duration_ns=0, target=0.0, shape=number / 10)
        stage.world.injector._network.inject(fault, stage.follower)
        stage.run(100)

    assert WAS_WRONG in stage.world.covered
    assert {Stage.node(each).core.term for each in stage.world.members.values()} == {stage.term}
    assert Stage.node(stage.leader).core.role is Role.LEADER

"""Each rule that the programs of the coordination load check themselves can fail."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from harness.sim.checks.store.leases import LeaseChecker
from harness.sim.checks.store.replay import StoreReplay
from harness.sim.engine.errors import Violation
from harness.sim.load.coordination import check_hub
from harness.sim.load.coordination_program import Coordination, SequentialProgram
from harness.sim.simulation import Simulation
from kvstore import (
    CallEnded,
    Consistency,
    Get,
    InvalidRequest,
    OperationFailed,
    Put,
    Range,
    Reason,
    Response,
    ResultCode,
)
from kvstore.resources.session_reaper import SessionReaper
from tests.simulation.load.test_coordination import a_plan

A, B = (b"1", 2, 2, 1, 0), (b"2", 3, 3, 1, 0)


def a_replay() -> StoreReplay:
    """A replay in which revision 2 sets a=1, revision 3 sets b=2, and revision 4 deletes a. The revisions from 3 on can
    be read."""
    replay = StoreReplay()
    replay.applied(1, 1, [[0, 0, 0, 20, 2]], [(0, 1, (20,))])
    puts = [[0, 0, 0, 1, b"a", b"1"], [0, 0, 0, 1, b"b", b"2"]]
    replay.applied(2, 2, puts, [(0, revision, (1,)) for revision in (2, 3)])
    replay.applied(3, 3, [[0, 0, 0, 3, b"a"], [0, 0, 0, 24, 3]], [(0, 4, (3, True)), (0, 4, (24,))])
    return replay


class _Idle(SequentialProgram):
    """A program that starts no operation by itself."""

    def act(self) -> None:
        """Nothing."""

    def restart(self) -> None:
        """Nothing."""


class Answered:
    """A program whose client answers immediately."""

    def __init__(self, end: CallEnded, *, bounds_keys: bool = False) -> None:
        self.covered: set[str] = set()
        replay = a_replay()
        leases = LeaseChecker(self.covered.add, trusts_clocks=True)
        leases.replay = replay
        queue = SimpleNamespace(now=0, after=lambda *_: None)
        plan = SimpleNamespace(load=SimpleNamespace(patience_ns=1))
        parts: Any = SimpleNamespace(
            world=SimpleNamespace(queue=queue, plan=plan, cover=self.covered.add),
            plan=SimpleNamespace(lease_ttl_ns=2, think_ns=1, bounds_keys=bounds_keys),
            replay=replay,
            leases=leases,
            told_revision=4,
            cover=self.covered.add,
        )
        client: Any = SimpleNamespace(submit=lambda _, __, ended: ended(end))
        random: Any = SimpleNamespace(expovariate=lambda _: 1.0)
        self.heard: list[Any] = []
        coordination: Coordination = parts
        self.program = _Idle(coordination, client, 1, random)

    def read(self, operation: Get | Range, consistency: Consistency = Consistency.LINEARIZABLE) -> None:
        self.program.read(operation, consistency, lambda *outcome: self.heard.append(outcome))

    def put(self) -> None:
        self.program.ask(Put(b"a", b"x"), lambda *outcome: self.heard.append(outcome))


def answer(code: int, revision: int, *fields: Any) -> CallEnded:
    return CallEnded(1, Response(1, code, revision, 1, "n1", fields), None, 0)


def failure(error: OperationFailed) -> CallEnded:
    return CallEnded(1, None, error, 0)


def test_right_answers_pass() -> None:
    """The answers are at the present revision, at an old revision, and at a revision that is no longer kept."""
    for end, operation in (
        (answer(0, 4, (2, None, 4, True)), Get(b"a")),
        (answer(0, 4, (2, A)), Get(b"a", 3)),
        (answer(0, 4, (4, ((b"a", *A), (b"b", *B)), False, 2)), Range(b"", None, revision=3)),
        (answer(ResultCode.REVISION_COMPACTED, 4, 2, 3), Get(b"a", 2)),
        (answer(ResultCode.REVISION_AHEAD, 4, 5, 4), Get(b"a", 5)),
    ):
        program = Answered(end)
        program.read(operation)
        assert len(program.heard) == 1


WRONG: dict[str, tuple[CallEnded, Callable[[Answered], None]]] = {
    "a read shows the state as of its revision": (
        answer(0, 4, (2, A)),
        lambda program: program.read(Get(b"a")),
    ),
    "only a revision that is not kept is refused": (
        answer(ResultCode.REVISION_COMPACTED, 4, 3, 4),
        lambda program: program.read(Get(b"a", 3)),
    ),
    "only a revision that is not reached is refused": (
        answer(ResultCode.REVISION_AHEAD, 4, 4, 4),
        lambda program: program.read(Get(b"a", 4)),
    ),
    "an answer is not older than any answer given before its request": (
        answer(0, 3, (2, A)),
        lambda program: program.read(Get(b"a")),
    ),
    "a client sends no invalid request": (
        failure(InvalidRequest(Reason.KEY_EMPTY)),
        lambda program: program.put(),
    ),
}


@pytest.mark.parametrize("rule", WRONG)
def test_a_wrong_answer_is_a_violation(rule: str) -> None:
    end, ask = WRONG[rule]

    with pytest.raises(Violation) as raised:
        ask(Answered(end))
    assert raised.value.rule == rule


def test_an_older_answer_of_any_member_is_no_violation() -> None:
    """A local read may return an older state. But this must be the state at the revision in the answer."""
    program = Answered(answer(0, 3, (2, A)))
    program.read(Get(b"a"), Consistency.LOCAL)

    assert len(program.heard) == 1


def test_a_member_that_has_not_come_to_the_level_may_refuse_its_commands() -> None:
    """The member's build may be too old to know the level."""
    program = Answered(failure(InvalidRequest(Reason.UNKNOWN_KIND)))
    program.put()

    assert program.covered == {"a member had not come to the level in force"}


@pytest.mark.parametrize("reason", [Reason.TOO_MANY_KEYS, Reason.LEASE_IS_FULL])
def test_a_command_exceeds_a_limit_only_if_the_plan_has_a_small_one(reason: Reason) -> None:
    refused = failure(InvalidRequest(reason, 3, 2))
    program = Answered(refused, bounds_keys=True)
    program.put()
    assert program.covered == {f"a command was refused: {reason}"}

    with pytest.raises(Violation) as raised:
        Answered(refused).put()
    assert raised.value.rule == "a client sends no invalid request"


def test_the_invariants_of_a_hub_are_a_rule() -> None:
    def broken() -> None:
        raise AssertionError("a watch is in two places")

    service: Any = SimpleNamespace(watches=SimpleNamespace(check=broken))
    with pytest.raises(Violation) as raised:
        check_hub(service)
    assert raised.value.rule == "a hub keeps its invariants"


@pytest.mark.timeout(100)
def test_leases_that_no_leader_ends_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases expire only when an entry is applied. So an idle leader must propose an entry."""
    monkeypatch.setattr(SessionReaper, "ns_to_expiry", lambda _: None)
    plan = a_plan(writers=0, watchers=1, contenders=0)

    violation = Simulation(plan).run().violation

    assert violation is not None
    assert violation.rule == "a lease that nobody renews ends"

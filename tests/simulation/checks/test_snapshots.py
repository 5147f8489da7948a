"""The simulator's rules about snapshots and sessions can fail, and some seeds reach the coverage marks of snapshots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from harness.sim.checks.sessions import SessionChecker
from harness.sim.checks.snapshots import check_built
from harness.sim.engine.errors import Violation
from harness.sim.load.service import ServiceLoad
from harness.sim.plan.draw import draw_plan
from harness.sim.plan.plan import ALL_HEALED, Plan
from harness.sim.simulation import Simulation
from harness.sim.world import member as members
from harness.sim.world.probes import StoreProbe
from kvstore import (
    CallEnded,
    CommandKind,
    Get,
    InvalidRequest,
    OutcomeUnknown,
    Reason,
    RequestClosed,
    ResultCode,
)
from raft import Acknowledge, StateSnapshot
from tests.simulation.support.plans import a_calm_plan
from tests.simulation.support.stage import Stage

SESSION = 5
TTL_NS = 100
REGISTERED = (ResultCode.OK, 1, (CommandKind.REGISTER_SESSION, SESSION, TTL_NS))
DONE = (ResultCode.OK, 2, (CommandKind.PUT,))
EXPIRED = (ResultCode.SESSION_EXPIRED, 2, SESSION)
CLOSED = (ResultCode.REQUEST_CLOSED, 2, 1, 1)
BUSY = (ResultCode.BUSY, 2, "results_per_session_max", 2)


def put(request_no: int, acknowledged_up_to: int = 0, session_id: int = SESSION) -> tuple[Any, ...]:
    return (session_id, request_no, acknowledged_up_to, CommandKind.PUT, b"k", b"v")


class Log:
    """A checker that was told of one session, which was registered at time 0."""

    def __init__(self) -> None:
        self.covered: list[str] = []
        self.book = SessionChecker(2, self.covered.append)
        self.register(REGISTERED)

    def register(self, result: Sequence[Any]) -> None:
        self.says(0, (0, 0, 0, CommandKind.REGISTER_SESSION, TTL_NS), result)

    def says(self, leader_time: int, command: Sequence[Any], result: Sequence[Any]) -> None:
        self.book.applied(leader_time, [command], [result])

    def is_used_when_closed(self) -> None:
        self.says(1, (SESSION, 0, 0, CommandKind.CLOSE_SESSION), DONE)
        self.says(2, put(1), DONE)

    def keeps_three(self) -> None:
        for number in (1, 2, 3):
            self.says(1, put(number), DONE)


def test_what_a_session_may_go_through_is_no_violation() -> None:
    log = Log()
    log.says(99, put(1), DONE)
    log.says(120, put(1), DONE)  # The store returns the kept result.
    log.says(130, put(2), DONE)
    log.says(140, put(3), BUSY)
    log.says(150, put(3, 1), DONE)  # The acknowledgement in request 3 makes the store forget the result of request 1.
    log.says(160, put(1), CLOSED)
    log.says(170, (SESSION, 0, 2, CommandKind.KEEP_ALIVE), DONE)
    log.says(269, put(4, 2), DONE)
    log.says(369, put(5, 2), EXPIRED)
    log.says(370, put(1, session_id=9), EXPIRED)
    assert set(log.covered) == {"a session expired", "a request came after it was closed"}


LIVES = "a session lives for its time after each of its commands, and no longer"
IS_CLOSED = "an acknowledged number is closed, and no other is"

WRONG: dict[str, tuple[str, Callable[[Log], None]]] = {
    "an id is given again": ("a session id is given once", lambda log: log.register(REGISTERED)),
    "it expires early": (LIVES, lambda log: log.says(99, put(1), EXPIRED)),
    "it expires late": (LIVES, lambda log: log.says(100, put(1), DONE)),
    "it lives on after it was closed": (LIVES, Log.is_used_when_closed),
    "a closed request is carried out": (IS_CLOSED, lambda log: log.says(1, put(3, 3), DONE)),
    "an open request is closed": (IS_CLOSED, lambda log: log.says(1, put(3, 2), CLOSED)),
    "too many results are kept": ("no more results are kept than the bound allows", Log.keeps_three),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_session_that_is_not_as_the_log_says_is_seen(what: str) -> None:
    rule, happens = WRONG[what]
    with pytest.raises(Violation) as caught:
        happens(Log())
    assert caught.value.rule == rule


REFUSALS = {
    "no answer calls an open request closed": RequestClosed(1, 2),
    "a client sends no invalid request": InvalidRequest(next(iter(Reason))),
}


@pytest.mark.parametrize("rule", REFUSALS)
@pytest.mark.parametrize("is_retry", [False, True])
def test_a_client_that_closes_what_is_open_is_seen(rule: str, is_retry: bool) -> None:
    """If the number of a request is at or below the acknowledged number, the member refuses the request as closed."""
    error = OutcomeUnknown(f"lost, then: {REFUSALS[rule]}") if is_retry else REFUSALS[rule]
    load = Simulation(a_plan_with_sessions()).load
    assert isinstance(load, ServiceLoad)
    worker = load._workers[0]
    row = load._history.called(worker.name, 1, Get(b"k"), 0)
    with pytest.raises(Violation) as caught:
        load._ended(worker, row, worker.source.next(), CallEnded(1, None, error), Acknowledge.MAJORITY)
    assert caught.value.rule == rule


def a_plan_with_sessions() -> Plan:
    return next(plan for plan in map(draw_plan, range(1, 50)) if plan.load.with_service)


class ForgetfulMachine(StoreProbe):
    """A machine whose snapshots leave out a session id."""

    def snapshot(self) -> StateSnapshot:
        picture = super().snapshot()
        header = {**picture.header, "next_session_id": picture.header["next_session_id"] + 1}
        return StateSnapshot(header=header, chunks=picture.chunks)


def test_a_snapshot_that_is_not_the_state_at_its_index_is_seen_when_it_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = a_calm_plan(members=1, heal=ALL_HEALED)
    plan = replace(plan, raft=replace(plan.raft, snapshot_log_bytes=300))
    clean = Simulation(plan).run()
    assert clean.violation is None
    assert "snapshot_built" in clean.covered

    monkeypatch.setattr(members, "StoreProbe", ForgetfulMachine)
    violation = Simulation(plan).run().violation

    assert violation is not None
    assert violation.rule == "state machine agreement"
    assert "n1's snapshot" in violation.detail


def test_a_snapshot_of_what_is_not_committed_is_seen() -> None:
    stage = Stage()
    stage.node(stage.follower).snapshot_now()
    stage.run(200)
    storage = stage.checker(stage.follower)._storage
    check_built(stage.world.safety, stage.follower, storage)
    stage.world.safety._committed[storage.snapshots.latest().header.index] += 1
    with pytest.raises(Violation) as caught:
        check_built(stage.world.safety, stage.follower, storage)
    assert caught.value.rule == "a snapshot contains only committed entries"

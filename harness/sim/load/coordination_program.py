"""The common part of all programs of the coordination load: client, checkers, and one open operation at a time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from harness.sim.checks.store.leases import LeaseChecker
from harness.sim.checks.store.replay import StoreReplay
from harness.sim.checks.store.watches import WatchChecker
from harness.sim.engine.errors import require
from harness.sim.load.client import SimClient
from harness.sim.load.pausing_program import PausingProgram
from harness.sim.plan.plan import CoordinationPlan
from harness.sim.world.client_connections import ClientConnections
from harness.sim.world.context import World
from kvstore import (
    CallEnded,
    Command,
    Consistency,
    Get,
    GetResult,
    InvalidRequest,
    KvError,
    Range,
    RangeResult,
    Reason,
    Request,
    Result,
    RevisionAhead,
    RevisionCompacted,
    StoreError,
    command_request,
    read_request,
    read_result,
)

PREFIX = b"\xff\xff"
"""The keys of this load begin with this prefix. The ordinary load neither writes nor lists such keys."""

SHARED_KEYS = [PREFIX + b"shared/%d" % number for number in range(4)]
"""Keys that several programs write, with leases and without."""

NOT_YET = (Reason.MALFORMED, Reason.UNKNOWN_KIND)
"""The reasons with which a member refuses a command of level 2 if its build knows only level 1. Such a member still
runs, because it has not yet applied the entry that raised the level.
"""

BOUNDED = (Reason.TOO_MANY_KEYS, Reason.LEASE_IS_FULL)
"""The reasons with which a command is refused if it exceeds the limit on keys. Some plans have a small limit. The
replay judges these refusals.
"""

LEVEL_LAGS = "a member had not come to the level in force"

Then = Callable[[Result | None, StoreError | None], None]


@dataclass(slots=True, kw_only=True)
class Coordination:
    """The parts of a run that the programs of this load use. `cover` is called with coverage points.

    `lease_left` is called when an owner stops renewing its lease. The argument is the time in ns until the lease may
    expire.
    """

    world: World
    plan: CoordinationPlan
    connections: ClientConnections
    replay: StoreReplay
    leases: LeaseChecker
    watches: WatchChecker
    lease_left: Callable[[int], None]
    living: Callable[[], list[str]]  # The names of the members that are expected to work.
    is_stopped: bool = False  # True once no program may begin another operation.
    is_over: bool = False  # True once the run ends and watches need not continue.
    told_revision: int = 0  # The greatest revision in any answer to these programs.

    @property
    def cover(self) -> Callable[[str], None]:
        """See `World.cover`."""
        return self.world.cover


class SequentialProgram(PausingProgram[Coordination]):
    """One program on a client. Several programs may share a client."""

    letter = b"z"

    def __init__(self, parts: Coordination, client: SimClient, number: int, random: Random) -> None:
        super().__init__(parts, number, random)
        self.client = client

    @property
    def can_act(self) -> bool:
        """False while the client has too many open calls."""
        return not self.client.is_full

    @abstractmethod
    def restart(self) -> None:
        """Reset the program, because its process has ended and another process has replaced it."""

    def ask(self, command: Command, then: Then) -> None:
        """Carry out a command through the log. Call `then` with its result or error, and act again after a pause."""
        self._submit(command_request(command), then)

    def read(self, operation: Get | Range, consistency: Consistency, then: Then) -> None:
        """Read without the log, and compare the answer with the replay."""
        told = self.parts.told_revision

        def check(result: Result | None, error: StoreError | None) -> None:
            self._check_read(operation, result, error)
            then(result, error)

        self._submit(read_request(operation, consistency), check, told if consistency is not Consistency.LOCAL else 0)

    def _submit(self, request: Request, then: Then, revision_min: int = 0) -> None:
        parts = self.parts
        patience_ns = min(parts.world.plan.load.patience_ns, parts.plan.lease_ttl_ns // 2)

        def ended(end: CallEnded) -> None:
            result, error = _outcome(end)
            if result is not None:
                require(
                    result.revision >= revision_min,
                    "an answer is not older than any answer given before its request",
                    f"{request} is answered with {result}, {revision_min} had been told",
                )
                parts.told_revision = max(parts.told_revision, result.revision)
            if isinstance(error, InvalidRequest) and error.reason is not Reason.KEY_NOT_FOUND:
                reasons = (*NOT_YET, *BOUNDED) if parts.plan.bounds_keys else NOT_YET
                require(error.reason in reasons, "a client sends no invalid request", request, error)
                parts.cover(LEVEL_LAGS if error.reason in NOT_YET else f"a command was refused: {error.reason}")
            then(result, error)
            self.rest()

        self.client.submit(request, parts.world.queue.now + patience_ns, ended)

    def _check_read(self, operation: Get | Range, result: Result | None, error: StoreError | None) -> None:
        """Compare the answer to a read with the state at its revision."""
        replay, leases = self.parts.replay, self.parts.leases
        if isinstance(error, RevisionCompacted):
            require(
                operation.revision < replay.compact_revision,
                "only a revision that is not kept is refused",
                operation,
                error,
            )
        if isinstance(error, RevisionAhead):
            require(
                operation.revision > error.args[1], "only a revision that is not reached is refused", operation, error
            )
        at = operation.revision or (result.revision if result is not None else 0)
        if isinstance(operation, Get) and isinstance(result, GetResult):
            wanted = replay.record_at(operation.key, at)
            got = _fields(result.record) if result.record is not None else None
            require(got == wanted, "a read shows the state as of its revision", operation, result, wanted)
            leases.read(at, [(operation.key, got[4])] if got is not None else [])
        elif isinstance(operation, Range) and isinstance(result, RangeResult):
            rows = [(item.key, _fields(item)) for item in result.items]
            listed = replay.state_at(operation.start, operation.end, at)
            require(rows == listed, "a read shows the state as of its revision", operation, result, listed)
            leases.read(at, [(key, record[4]) for key, record in rows])


def _fields(record: Any) -> tuple[Any, ...]:
    return record.value, record.create_revision, record.mod_revision, record.version, record.lease_id


def _outcome(end: CallEnded) -> tuple[Result | None, StoreError | None]:
    """The result of a call, or its error."""
    if end.response is None:
        return None, end.error
    response = end.response
    try:
        return read_result((response.code, response.revision, *response.fields)), None
    except KvError as error:
        return None, error

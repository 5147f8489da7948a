"""Writes with acknowledgement levels: the level of each write, the meaning of its answer, and its later outcome.

See docs/reference/specification.md#910-acknowledgement-levels.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.sim.checks.acknowledgements.fates import DEFINITE, FateChecker
from harness.sim.checks.acknowledgements.responses import ResponseChecker
from harness.sim.checks.context import CheckedWorld
from harness.sim.checks.history import HistoryChecker
from harness.sim.engine.rng import stream
from harness.sim.load.access.users import OF_ROOT
from harness.sim.load.client import SimClient
from harness.sim.plan.plan import MILLISECOND_NS
from harness.sim.world.client_connections import ClientConnections
from kvstore import (
    CallEnded,
    ChangeLimits,
    ClientLimits,
    Code,
    Command,
    CompareAndSet,
    EntryFate,
    Get,
    Put,
    Range,
    Response,
    command_request,
    outcome_request,
)
from raft import Acknowledge

ASKED_NS_MAX = 500 * MILLISECOND_NS
"""The longest time from an accepted write until a client asks for its outcome."""

LIMIT_EVERY_NS = 400 * MILLISECOND_NS
"""How long an operator waits on average between two changes of `min_in_sync`."""

ANSWER_NS = 1_000 * MILLISECOND_NS
"""How long a client waits for an answer in addition to the wait that its request names."""

SETTLED_MAX = 20
"""The most entries whose outcomes are asked for at the end of a run. The lost entries come first, because there are few
of them. Then come the newest entries.
"""

LEVELS = tuple(Acknowledge)
CONFIRMED = (Acknowledge.MAJORITY, Acknowledge.IN_SYNC)


class AcknowledgedWrites:
    """Chooses the levels of writes, reads the answers, and asks for the outcomes of accepted writes."""

    def __init__(self, world: CheckedWorld, connections: ClientConnections, history: HistoryChecker) -> None:
        self._world, self._plan, self._history = world, world.plan.acknowledgements, history
        seed = world.plan.seed
        self._random, self._questions = stream(seed, "levels"), stream(seed, "levels/questions")
        self._limits = stream(seed, "levels/limits")
        self.fates = FateChecker(world.safety, world.cover)
        self._accepted: list[tuple[int, int, Command]] = []  # The accepted writes: (index, term, command).
        self._is_stopped = False
        self._operator: SimClient | None = None
        if self._plan.is_on:
            connections.watcher = ResponseChecker(world.cover)
        if self._plan.is_on and self._plan.min_in_sync_max:
            endpoints = [f"{machine}:1" for machine in world.plan.members]
            root = OF_ROOT if world.plan.access.is_on else None
            self._operator = SimClient(world, connections, "limits", endpoints, ClientLimits(), 0, root)

    def start(self) -> None:
        """Let the operator begin to change `min_in_sync`."""
        if self._operator is not None:
            self._change_limit_later()

    def stop(self) -> None:
        """Stop all changes of limits and all questions about outcomes."""
        self._is_stopped = True

    def level_of(self, command: Command) -> Acknowledge:
        """Draw the level of a command.

        Only a put or a compare-and-set may end without its result, because its written value in the log shows whether
        it was carried out.
        """
        if not self._plan.is_on or isinstance(command, Get | Range):
            return Acknowledge.MAJORITY
        is_drawn, level = self._random.random() < self._plan.level_share, self._random.choice(LEVELS)
        if not is_drawn or (level not in CONFIRMED and not isinstance(command, Put | CompareAndSet)):
            return Acknowledge.MAJORITY
        return level

    def result_in(self, response: Response, level: Acknowledge) -> Response | None:
        """Return the response as for level MAJORITY; None if the response has no result."""
        if level is Acknowledge.NONE or response.code == Code.ACCEPTED:
            return None
        if level is not Acknowledge.IN_SYNC:
            return response
        if response.code == Code.UNDER_REPLICATED:
            return response._replace(code=int(Code.OK), fields=response.fields[2:])
        return response._replace(fields=response.fields[:-1])

    def accepted(self, client: SimClient, command: Command, response: Response) -> None:
        """Record an accepted write, and in some cases ask later for its outcome."""
        index, term = response.fields[:2]
        self.fates.accepted.add((index, term))
        self._accepted.append((index, term, command))
        random = self._questions
        is_asked, after_ns, wait = random.random() < self._plan.outcome_share, random.random(), random.random()
        if is_asked:
            wait_ms = int(wait * (self._plan.wait_ms_max + 1))
            self._world.queue.after(
                int(after_ns * ASKED_NS_MAX), self._ask_unless_stopped, client, index, term, wait_ms
            )

    def _ask_unless_stopped(self, client: SimClient, index: int, term: int, wait_ms: int) -> None:
        if not self._is_stopped and not client.is_full:
            command = next(each[2] for each in self._accepted if each[:2] == (index, term))
            self._ask(client, index, term, command, wait_ms, lambda _: None)

    def _ask(
        self, client: SimClient, index: int, term: int, command: Command, wait_ms: int, then: Callable[[bool], None]
    ) -> None:
        """Ask for the outcome of an entry. `then` is called with True if the answer is final."""

        def ended(end: CallEnded) -> None:
            fate = None if end.response is None else EntryFate(end.response.fields[0])
            if fate is not None:
                self.fates.told(index, term, fate)
            if fate is EntryFate.LOST:
                self._history.lost(command)
            then(fate in DEFINITE or fate is EntryFate.FORGOTTEN)

        deadline = self._world.queue.now + wait_ms * MILLISECOND_NS + ANSWER_NS
        client.submit(outcome_request(index, term, wait_ms=wait_ms), deadline, ended)

    # -- limits

    def _change_limit_later(self) -> None:
        self._world.queue.after(1 + int(self._limits.expovariate(1) * LIMIT_EVERY_NS), self._change_limit)

    def _change_limit(self) -> None:
        assert self._operator is not None
        if self._is_stopped:
            return
        # In half of the cases the limit is the number of all voters. Then one slow member is enough to make an answer
        # name too few members.
        any_limit, is_all = self._limits.randint(1, self._plan.min_in_sync_max), self._limits.random() < 0.5
        limit = min(len(self._world.plan.voters), self._plan.min_in_sync_max) if is_all else any_limit
        deadline = self._world.queue.now + ANSWER_NS
        # The command is refused until the feature level is raised.
        self._operator.submit(
            command_request(ChangeLimits(min_in_sync=limit)), deadline, lambda _: self._change_limit_later()
        )

    # -- the end

    def settle(self, client: SimClient, deadline: int, then: Callable[[], None]) -> None:
        """Ask for the outcomes of the last accepted entries until each has a final answer, and then call `then`.

        If `deadline` passes first, `then` is never called.
        """
        self.fates.cover_lost()
        lost = [each for each in self._accepted if self.fates.is_lost(*each[:2])]
        chosen = [*self._accepted, *lost][-SETTLED_MAX:]
        self._settle(client, chosen[::-1], deadline, then)

    def _settle(
        self, client: SimClient, left: list[tuple[int, int, Command]], deadline: int, then: Callable[[], None]
    ) -> None:
        if not left:
            then()
            return
        if self._world.queue.now >= deadline:
            return
        index, term, command = left[0]

        def ended(is_final: bool) -> None:
            rest = left[1:] if is_final else left
            self._world.queue.after(1, self._settle, client, rest, deadline, then)

        self._ask(client, index, term, command, self._plan.wait_ms_max, ended)

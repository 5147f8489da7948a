"""One simulated client: the production `ClientStateMachine` in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from harness.sim.engine.clock import Clock
from harness.sim.engine.errors import require
from harness.sim.engine.rng import stream
from harness.sim.world.client_connections import ClientConnections
from harness.sim.world.context import World
from kvstore import CallEnded, ClientLimits, ClientStateMachine, Credentials, Request

Ended = Callable[[CallEnded], None]

FLUSHES_IN_PLACE_MAX = 1_000
"""A client state machine that needs this many flushes in a row, while no time passes, is stuck."""

CONNECTIONS_MAX = 1 << 20
"""The most connections that one process may open.

The connections of the next process have higher numbers, so that late data for the ended process finds no connection.
"""


class SimClient:
    """The host of one `ClientStateMachine`, which dials, moves bytes, keeps time, and reports how calls ended."""

    def __init__(
        self,
        world: World,
        connections: ClientConnections,
        name: str,
        endpoints: Sequence[str],
        limits: ClientLimits,
        ttl_ns: int,
        credentials: Credentials | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.credentials = credentials  # A change takes effect when the next process begins.
        self._world, self._connections = world, connections
        # A client inside a member has the clock of its machine.
        self._clock = clock or Clock(world.queue, world.plan.seed, name, world.plan.clocks.client_spread)
        self._endpoints, self._limits = endpoints, limits
        self._core = self._new_core(ttl_ns)
        self._waiting: dict[int, Ended] = {}
        self._last_ticket = 0
        self._timer_at: int | None = None
        self._flushes_in_place = 0
        self._first_id = 0  # The connections of the present process have higher numbers than this number.

    def _new_core(self, ttl_ns: int) -> ClientStateMachine:
        return ClientStateMachine(
            self._endpoints,
            random=stream(self._world.plan.seed, f"client/{self.name}"),
            now=self._clock.now(),
            limits=self._limits,
            session_ttl_ns=ttl_ns,
            credentials=self.credentials,
        )

    def vanish(self) -> None:
        """End the process without closing its session, so that members notice only the end of connections.

        Then start a process without a session.
        """
        self._waiting.clear()
        self._begin_anew(ttl_ns=0)

    def leave(self, *, is_told: bool, ttl_ns: int) -> None:
        """End the program with its open calls, and start it again.

        `is_told`: True if the program closes its session before its end.
        """
        self._core.tick(self._clock.now())
        self._core.close()
        effects = self._core.take_effects()
        for connection_id, data in effects.send if is_told else ():
            self._connections.send(self, self._first_id + connection_id, data)
        self._begin_anew(ttl_ns=ttl_ns)
        for ended in effects.ended:
            self._waiting.pop(ended.ticket)(ended)

    def _begin_anew(self, *, ttl_ns: int) -> None:
        self._connections.client_down(self)
        self._first_id += CONNECTIONS_MAX
        self._core, self._timer_at = self._new_core(ttl_ns), None

    def jump(self, by_ns: int) -> None:
        """Let the client's clock jump ahead."""
        self._clock.jump(by_ns)
        self._core.tick(self._clock.now())
        self.flush()

    def now(self) -> int:
        """Return the time of the client's clock, in ns."""
        return self._clock.now()

    @property
    def session_id(self) -> int:
        """The id of the session in use; 0 if there is none."""
        return self._core.session_id

    @property
    def is_full(self) -> bool:
        """True if nothing more can be submitted now."""
        return self._core.is_full

    def submit(self, request: Request, deadline: int, ended: Ended) -> None:
        """Begin a call.

        `ended` is called at the end of the call, which is no later than `deadline` (true ns) if the clock is exact.
        """
        self.take(request, deadline, ended)
        self.flush()

    def take(self, request: Request, deadline: int, ended: Ended) -> None:
        """Begin a call, but send nothing before the next `flush`, which sends all such calls together."""
        self._last_ticket += 1
        self._waiting[self._last_ticket] = ended
        now = self._clock.now()
        self._core.tick(now)
        self._core.submit(self._last_ticket, request, now + deadline - self._world.queue.now)

    # -- what connections report

    def connected(self, connection_id: int) -> None:
        """Handle the opening of a connection that the client has dialed."""
        if connection_id > self._first_id:
            self._core.tick(self._clock.now())
            self._core.connected(connection_id - self._first_id)
            self.flush()

    def receive(self, connection_id: int, data: bytes) -> None:
        """Receive bytes that a member has sent."""
        if connection_id > self._first_id:
            self._core.tick(self._clock.now())
            self._core.receive(connection_id - self._first_id, data)
            self._world.note_client(self.name, data)
            self.flush()

    def disconnected(self, connection_id: int, reason: str) -> None:
        """Handle the end of a connection."""
        if connection_id > self._first_id:
            self._core.tick(self._clock.now())
            self._core.disconnected(connection_id - self._first_id, reason)
            self.flush()

    # -- inside

    def _on_timer(self, time_ns: int) -> None:
        if self._timer_at == time_ns:
            self._timer_at = None
            self._core.tick(self._clock.now())
            self.flush()

    def flush(self) -> None:
        """Carry out the effects of the client state machine."""
        effects = self._core.take_effects()
        for connection_id, address in effects.dial:
            self._connections.dial(self, self._first_id + connection_id, address)
        for connection_id, data in effects.send:
            self._connections.send(self, self._first_id + connection_id, data)
        for connection_id in effects.close:
            self._connections.hang_up(self, self._first_id + connection_id)
        for ended in effects.ended:
            self._report(ended)
        for watch in effects.watched:
            self._has_news(watch)
        self._arm()

    def _report(self, ended: CallEnded) -> None:
        self._waiting.pop(ended.ticket)(ended)

    def _has_news(self, watch: Any) -> None:
        """Tell the reader of a watch that there is something to take. This client has no watches."""

    def _arm(self) -> None:
        due = self._core.next_deadline()
        if due is None:
            return
        due = self._clock.due(due)
        self._flushes_in_place = self._flushes_in_place + 1 if due == self._world.queue.now else 0
        require(self._flushes_in_place < FLUSHES_IN_PLACE_MAX, "timers let time pass", self.name)
        if self._timer_at is None or due < self._timer_at:
            self._timer_at = due
            self._world.queue.at(due, self._on_timer, due)

"""A program that watches keys as one of the users, and begins again as another user when its watch has ended."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from harness.sim.checks.access.rules import AccessChecker, Visit
from harness.sim.engine.errors import require
from harness.sim.load.access.users import KEYS, SPANS, PasswordBook, cheap_verifier
from harness.sim.plan.plan import MILLISECOND_NS
from harness.sim.world.client_connections import ClientConnections
from harness.sim.world.context import World
from kvstore import Code, RequestKind
from raft import (
    FRAME_BYTES_MAX_CLIENT,
    FrameSplitter,
    Hello,
    HelloRole,
    decode_item,
    encode_item,
    frame,
)

HELLO = Hello(cluster_id=b"", group_id=0, node_id="", incarnation_id=b"", role=HelloRole.CLIENT)

AUTHENTICATE_ID, WATCH_ID = 6, 7

WINDOW_BYTES = 1 << 30
"""A window that is larger than all messages of a run, because the program never returns bytes of the window."""

EVENTS, CANCELLED = 2, 4
"""Kinds of messages of a watch."""

PAUSE_NS = 30 * MILLISECOND_NS

STAY_NS = 600 * MILLISECOND_NS
"""How long a program stays at a member on average."""


class AccessWatcher:
    """One program with one connection, and one watch on it."""

    def __init__(
        self,
        name: str,
        world: World,
        connections: ClientConnections,
        checker: AccessChecker,
        users: Sequence[str],
        passwords: PasswordBook,
        random: Random,
    ) -> None:
        self.name = name
        self._world, self._connections, self._checker = world, connections, checker
        self._users, self._passwords, self._random = users, passwords, random
        self._connection_id = 0
        self._visit, self._password = Visit("", b"", b"", None), ""
        self._splitter = FrameSplitter(FRAME_BYTES_MAX_CLIENT)
        self._is_greeted = False
        self.visits: dict[int, Visit] = {}  # By connection id. Ended visits are kept: members learn of ends late.
        self.is_stopped = False

    def begin(self) -> None:
        """Dial a member as one of the users."""
        if self.is_stopped:
            return
        user = self._random.choice(self._users)
        password = self._passwords.of(user)
        start, end = self._random.choice([*SPANS, (KEYS[0], KEYS[-1])])
        self._connection_id += 1
        self._visit = self.visits[self._connection_id] = Visit(user, cheap_verifier(password), start, end)
        self._password = password
        self._splitter, self._is_greeted = FrameSplitter(FRAME_BYTES_MAX_CLIENT), False
        member = self._random.choice(list(self._world.members))
        self._connections.dial(self, self._connection_id, f"{member}:1")
        stay_ns = 1 + int(self._random.expovariate(1) * STAY_NS)
        self._world.queue.after(stay_ns, self._leave, self._connection_id)

    def _leave(self, connection_id: int) -> None:
        if connection_id == self._connection_id:
            self._connections.hang_up(self, connection_id)
            self._connection_id += 1  # Whatever still arrives on the old connection is ignored.
            self._world.queue.after(1 + int(self._random.expovariate(1) * PAUSE_NS), self.begin)

    def connected(self, connection_id: int) -> None:
        """Authenticate as the user. The watch is requested after the answer."""
        if connection_id == self._connection_id:
            self._send(HELLO.encode())
            proof = (AUTHENTICATE_ID, int(RequestKind.AUTHENTICATE), self._visit.user, self._password)
            self._send(encode_item(proof))

    def _send(self, body: bytes) -> None:
        self._connections.send(self, self._connection_id, frame(body))

    def disconnected(self, connection_id: int, reason: str) -> None:
        """Continue at another member."""
        require(reason != "closed by the member", "a watch and its member understand each other", self.name, reason)
        self._leave(connection_id)

    def receive(self, connection_id: int, data: bytes) -> None:
        """Receive bytes that a member has sent."""
        if connection_id != self._connection_id:
            return
        self._world.note_client(self.name, data)
        for body in self._splitter.feed(data):
            if self._is_greeted:
                self._receive(decode_item(body))
            self._is_greeted = True
            if connection_id != self._connection_id:
                return

    def _receive(self, items: Sequence[Any]) -> None:
        request_id, code, _, _, _, *fields = items
        if code != Code.OK:
            self._world.cover(f"a watcher was refused: {Code(code).name.lower()}")
            self._leave(self._connection_id)
        elif request_id == AUTHENTICATE_ID:
            items = (WATCH_ID, int(RequestKind.WATCH), self._visit.start, self._visit.end, 0, 0, WINDOW_BYTES)
            self._send(encode_item(items))
        elif fields[0] == EVENTS:
            start, end = self._visit.start, self._visit.end
            for key, change, *_ in fields[3]:
                require(key >= start and (end is None or key < end), "a watch has its keys", key)
                revision = change if isinstance(change, int) else change[2]
                self._checker.event(self._visit, revision)
                self._world.cover("a user received an event")
        elif fields[0] == CANCELLED:
            self._world.cover(f"the watch of a user ended: {fields[1]}")
            self._leave(self._connection_id)

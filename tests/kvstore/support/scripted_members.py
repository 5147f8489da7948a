"""A client's retry machine and members that do what a test says, without a network and without a clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Any

from kvstore.client.calls import CallEnded
from kvstore.client.client_limits import MILLISECOND_NS, ClientLimits
from kvstore.client.core import ClientStateMachine
from kvstore.protocol.commands import Command, CommandKind, Get, Put
from kvstore.protocol.messages import (
    Code,
    Consistency,
    DecodedRequest,
    MembersView,
    RequestKind,
    check_client_hello,
    command_request,
    decode_request,
    encode_response,
    members_fields,
    read_request,
)
from raft import FRAME_BYTES_MAX_CLIENT, FrameSplitter, Hello, HelloRole, frame

CLUSTER_ID = b"c" * 16
LIMITS = ClientLimits(attempt_timeout_ns=1000 * MILLISECOND_NS)
SECOND = 1000 * MILLISECOND_NS


class ScriptedMember:
    """One member. It greets, names the leader and registers sessions; other requests wait in `asked` for the test."""

    def __init__(self, world: World, node_id: str) -> None:
        self.world, self.node_id, self.address = world, node_id, f"{node_id}:1"
        self.cluster_id = CLUSTER_ID
        self.is_up = True
        self.is_silent = False  # A silent member keeps its connections and answers nothing.
        self.leader_id: str | None = None
        self.registers = True
        self.asked: deque[tuple[int, DecodedRequest]] = deque()
        self.connections: dict[int, FrameSplitter] = {}
        self._greeted: set[int] = set()

    def receive(self, connection_id: int, data: bytes) -> None:
        for body in self.connections[connection_id].feed(data):
            if self.is_silent:
                continue
            if connection_id not in self._greeted:
                check_client_hello(body)
                self._greeted.add(connection_id)
                self.send(connection_id, self._hello())
            else:
                self._on_request(connection_id, decode_request(body))

    def _hello(self) -> bytes:
        return Hello(
            cluster_id=self.cluster_id, group_id=0, node_id=self.node_id, incarnation_id=b"i" * 16, role=HelloRole.PEER
        ).encode()

    def _on_request(self, connection_id: int, asked: DecodedRequest) -> None:
        if asked.kind == RequestKind.MEMBERS:
            leader = self.world.members.get(self.leader_id or "")
            rows = tuple((member.node_id, member.address) for member in self.world.members.values())
            view = MembersView(self.leader_id, leader.address if leader else None, 1, rows)
            self.respond(connection_id, asked, Code.OK, members_fields(view))
        elif asked.kind == RequestKind.COMMAND and asked.items[3] == CommandKind.REGISTER_SESSION and self.registers:
            self.world.sessions += 1
            body = (CommandKind.REGISTER_SESSION, self.world.sessions, asked.items[4])
            self.respond(connection_id, asked, Code.OK, (body,))
        else:
            self.asked.append((connection_id, asked))

    def respond(self, connection_id: int, asked: DecodedRequest, code: int, fields: Sequence[Any] = ()) -> None:
        self.send(connection_id, encode_response(asked.request_id, int(code), 7, 0, self.node_id, fields))

    def send(self, connection_id: int, body: bytes) -> None:
        if connection_id in self.connections:
            self.world.core.receive(connection_id, frame(body))

    def answer(self, code: int = Code.OK, *fields: Any) -> DecodedRequest:
        """Answer the oldest waiting request, by default as a put."""
        connection_id, asked = self.asked.popleft()
        self.respond(connection_id, asked, code, fields if fields or code else ((CommandKind.PUT,),))
        self.world.settle()
        return asked

    def hang_up(self) -> None:
        """All connections break."""
        for connection_id in list(self.connections):
            del self.connections[connection_id]
            self.world.core.disconnected(connection_id, f"{self.address}: reset")
        self.asked.clear()
        self.world.settle()


class World:
    """One client and its members. Bytes arrive immediately, and time passes only in `wait`."""

    def __init__(
        self,
        *node_ids: str,
        leader: str | None = None,
        limits: ClientLimits = LIMITS,
        ttl_ns: int = 0,
        endpoints: Sequence[str] | None = None,
    ) -> None:
        self.now = 1_000 * SECOND
        self.sessions = 0
        self.members: dict[str, ScriptedMember] = {}
        for node_id in node_ids:
            self.members[node_id] = ScriptedMember(self, node_id)
        for member in self.members.values():
            member.leader_id = leader
        addresses = endpoints or [member.address for member in self.members.values()]
        self.core = ClientStateMachine(addresses, random=Random(1), now=self.now, limits=limits, session_ttl_ns=ttl_ns)
        self.ended: dict[int, CallEnded] = {}
        self._last_ticket = 0

    def __getitem__(self, node_id: str) -> ScriptedMember:
        return self.members[node_id]

    def all_follow(self, leader: str | None) -> None:
        for member in self.members.values():
            member.leader_id = leader

    def put(self, key: bytes = b"k", seconds: float = 5) -> int:
        return self.command(Put(key, b"v"), seconds)

    def command(self, command: Command, seconds: float = 5) -> int:
        self._last_ticket += 1
        self.core.submit(self._last_ticket, command_request(command), self.now + int(seconds * SECOND))
        self.settle()
        return self._last_ticket

    def get(
        self, seconds: float = 5, consistency: Consistency = Consistency.LINEARIZABLE, at: str | None = None
    ) -> int:
        self._last_ticket += 1
        request = read_request(Get(b"k"), consistency, at)
        self.core.submit(self._last_ticket, request, self.now + int(seconds * SECOND))
        self.settle()
        return self._last_ticket

    def settle(self) -> None:
        """Carry out effects until there are none."""
        while True:
            effects = self.core.take_effects()
            for ended in effects.ended:
                assert ended.ticket not in self.ended, ended
                self.ended[ended.ticket] = ended
            for connection_id in effects.close:
                for member in self.members.values():
                    member.connections.pop(connection_id, None)
            for connection_id, address in effects.dial:
                self._connect(connection_id, address)
            for connection_id, data in effects.send:
                for member in self.members.values():
                    if connection_id in member.connections:
                        member.receive(connection_id, data)
            if not (effects.dial or effects.send or effects.close or effects.ended):
                return

    def _connect(self, connection_id: int, address: str) -> None:
        member = next((member for member in self.members.values() if member.address == address), None)
        if member is None or not member.is_up:
            self.core.disconnected(connection_id, f"{address}: connection refused")
            return
        member.connections[connection_id] = FrameSplitter(FRAME_BYTES_MAX_CLIENT)
        self.core.connected(connection_id)

    def wait(self, seconds: float) -> None:
        """Let time pass, in the steps that the machine asks for."""
        end = self.now + int(seconds * SECOND)
        while True:
            deadline = self.core.next_deadline()
            if deadline is None or deadline > end:
                break
            assert deadline > self.now, "the machine asks for a moment that has passed"
            self.now = deadline
            self.core.tick(self.now)
            self.settle()
        self.now = end
        self.core.tick(end)
        self.settle()

    def crash(self, node_id: str) -> None:
        self[node_id].is_up = False
        self[node_id].hang_up()

    def outcome(self, ticket: int) -> str:
        """The call's outcome: "ok", "fail" or "unknown"; "open" while the call has not ended."""
        ended = self.ended.get(ticket)
        if ended is None:
            return "open"
        if ended.error is None:
            return "ok"
        return "unknown" if type(ended.error).__name__ == "OutcomeUnknown" else "fail"

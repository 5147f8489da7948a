"""Clients send frames of any structure to the service of a real member. The disk of this member is in memory.

Between these frames an honest client sends puts and gets. A member survives an unexpected error of a request, but no
input of these tests may cause such an error: each unexpected error shows a bug.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import cbor2

from kvstore import KvMachine, StoreLimits, initial_header
from kvstore.access.requests import authenticate_request
from kvstore.limits import FEATURE_LEVELS, ServiceLimits
from kvstore.protocol.commands import Get, Put, RaiseFeatureLevel
from kvstore.protocol.messages import (
    Code,
    Consistency,
    RequestKind,
    command_request,
    decode_request,
    decode_response,
    encode_client_hello,
    encode_request,
    read_request,
)
from kvstore.protocol.watches import MessageKind
from kvstore.server.access_guard import PasswordCheck
from kvstore.server.service import Service
from raft import (
    FRAME_BYTES_MAX_CLIENT,
    Configuration,
    FrameSplitter,
    Hello,
    HelloRole,
    Identity,
    Member,
    Node,
    ProtocolError,
    RaftConfig,
    Refusal,
    Role,
    decode_hello,
    frame,
)
from tests.fuzz.campaign import RecordProperty, campaign, sizes
from tests.fuzz.structures import Item, Structures
from tests.kvstore.support.users import commands_to_enable
from tests.raft.support.memory_stores import Disk, MemoryLog, MemoryPins, MemorySnapshots

MS = 1_000_000
CONNECTIONS_PER_MEMBER = 300
"""After this many connections a new member is made, so that the log stays short."""

FRAMES_MAX = 12
"""The client of a connection hangs up after at most this many frames."""

HONEST_KEY, HONEST = b"honest", 1
"""A key that only the honest client writes, and the connection of this client."""

TAIL = [0, 0, 0]
"""session_id, request_no and acknowledged_up_to of a command without a session."""

RANGE = [4, b"", None, 0, False, False, False, 0, 0]
TXN = [6, [[1, 1, b"a", 0], [4, 3, b"k", b"v"]], [[1, b"a", b"v"], [2, b"k"]], [[3, b"a"], RANGE]]

REQUESTS: tuple[list[Item], ...] = (
    [1, 1],
    [2, 2, [*TAIL, 1, b"k", b"v"]],
    [2, 2, [*TAIL, 1, b"k", b"v"]],
    [2, 2, [1, 1, 0, 1, b"k", b"v"]],
    [70_000, 2, [2, 2, 1, 3, b"k"]],
    [2, 2, [*TAIL, *RANGE]],
    [2, 2, [*TAIL, 5, b"k", b"w", b"v"]],
    [2, 2, [*TAIL, 5, b"k", b"w", 3]],
    [2, 2, [*TAIL, *TXN]],
    [2, 2, [1, 4, 1, *TXN]],
    [2, 2, [*TAIL, 16, 2_000_000_000]],
    [2, 2, [1, 0, 0, 17]],
    [2, 2, [1, 0, 0, 18]],
    [2, 2, [*TAIL, 19, None, None, None, None, None, None]],
    [2, 2, [*TAIL, 20, 1]],
    [2, 2, [*TAIL, 20, 2]],
    [3, 3, 1, [2, b"k"]],
    [3, 3, 1, RANGE],
    [3, 3, 2, [2, b"k"]],
    [3, 3, 3, [2, b"k"]],
    [3, 3, 3, RANGE],
    [3, 3, 4, [2, b"k"]],
    [3, 3, 5, [2, b"k"], 1_000],
    [4, 4, False],
    [4, 4, True],
    [5, 5, 1, 1_000],
    [6, 6, None],
    [6, 6, "s1"],
    [7, 7, None, 0, 100, 0, False],
    [7, 7, None, 0, 100, 2, True],
    [7, 7, "0-0", 0, 100, 0, False],
    [8, 8, [["s2", "127.0.0.1:7104", "127.0.0.1:7101", b""]], [], [], []],
    [8, 8, [], ["s2"], [], []],
    [8, 8, [], [], ["s2"], [["s1", "127.0.0.1:7004", "127.0.0.1:7001", b""]]],
    [9, 9, True, "s2"],
    [10, 10, 0, 500],
    [11, 11, 1, True],
    [11, 11, 2, False],
    [12, 12],
    [1_013, 13, b"", None, 0, 0, 1_000_000],
    [1_013, 13, b"k", b"k\0", 0, 1, 100],
    [1_014, 13, b"a", b"z", 2, 10, 1_000_000],
    [1_014, 13, b"a", None, 1_000, 4, 1],
    [1_013, 14],
    [1_014, 14],
    [1_013, 15, 1_000],
    [1_014, 15, 1],
    [1_013, 16],
    [1_014, 16],
    [17, 17, 0, 10],
    [18, 18, 1, b"", 10],
    [20, 20, 1, 1, 0],
    [21, 21, "ada", "right"],
    [21, 21, "ada", "wrong"],
    [21, 21, "ada", b"token"],
    [22, 22, 0, ""],
    [22, 22, 1, "ada"],
    [22, 22, 2, ""],
    [2, 2, [*TAIL, 8, 1, "root", 1, b"k", b"v"]],
    [2, 2, [*TAIL, 25, "root", b""]],
    [2, 2, [*TAIL, 26, "ada"]],
    [2, 2, [*TAIL, 27, "ada", b"v"]],
    [2, 2, [*TAIL, 28, "root", "root"]],
    [2, 2, [*TAIL, 29, "ada", "apps"]],
    [2, 2, [*TAIL, 30, "ada", 1, None, 0, 5]],
    [2, 2, [*TAIL, 31, "apps"]],
    [2, 2, [*TAIL, 32, "apps"]],
    [2, 2, [*TAIL, 33, "apps", 3, b"a", b"b"]],
    [2, 2, [*TAIL, 34, "apps", b"a", None]],
    [2, 2, [*TAIL, 35, bytes(32)]],
    [2, 2, [*TAIL, 36]],
    [13, 99, None],
)
"""One valid request of each kind and shape. The fast paths also read the frequent requests."""


class FuzzedMember:
    """A member with an honest client. With one voter the member leads. With three voters the member hears none of its
    peers."""

    def __init__(self, voters: int = 1, level: int = 1, *, asks_for_users: bool = False) -> None:
        members = [Member(f"s{i}", f"127.0.0.1:{7000 + i}", f"127.0.0.1:{7100 + i}") for i in range(1, voters + 1)]
        self.disk, self.now = Disk(), 0
        self.machine = KvMachine()
        identity = Identity(cluster_id=bytes(16), group_id=0, node_id="s1", incarnation_id=b"s1".ljust(16, b"\0"))
        log = MemoryLog(self.disk)
        self.node = Node(
            identity=identity,
            config=RaftConfig(),
            log=log,
            snapshots=MemorySnapshots(self.disk, Configuration.of(members), initial_header()),
            pins=MemoryPins(self.disk),
            hard_state=log.hard_state,
            machine=self.machine,
            random=Random(1),
            now=0,
            levels=FEATURE_LEVELS,
        )
        self.service = Service(self.node, self.machine, ServiceLimits(in_flight_max=64, unsent_bytes_max=256 * 1024))
        self.answers: Counter[int] = Counter()  # By code.
        self._splitters: dict[int, FrameSplitter] = {}
        self._bodies: dict[int, list[bytes]] = {}
        self.closed: set[int] = set()
        self._serial = 0
        self._honest_value = b""
        while voters == 1 and self.node.core.role is not Role.LEADER:
            self.wait(50)
        self.connect(HONEST)
        self.exchange(HONEST, frame(encode_client_hello()))
        if voters == 1 and level > 1:
            self.exchange(HONEST, frame(encode_request(1, command_request(RaiseFeatureLevel(level)))))
            assert self.machine.feature_level == level
        self.asks_for_users = asks_for_users and voters == 1
        self.service.check_password = self._check_password
        if self.asks_for_users:
            for command in commands_to_enable():
                self.exchange(HONEST, frame(encode_request(1, command_request(command))))
            assert self.machine.access.is_enabled
            self.exchange(HONEST, frame(encode_request(1, authenticate_request("root", "right"))))

    def _check_password(self, check: PasswordCheck) -> None:
        """Check a password in no time, because these tests do not test the hash."""
        check.is_right = check.password == "right"
        self.service.password_checked(check)

    def wait(self, ms: int) -> None:
        self.now += ms * MS
        self.node.tick(self.now)
        self.settle()

    def settle(self) -> None:
        """Run everything that can happen without time passing."""
        is_busy = True
        while is_busy:
            effects = self.node.take_effects()
            assert effects.failure is None, effects.failure
            is_busy = self.service.complete(effects.completions, effects.events) or not effects.is_empty
            is_busy |= self.node.begin_sync()
            if self.service.has_work:
                self.service.work()
                is_busy = True
            if self.disk.waiting:
                self.disk.complete_one()
                is_busy = True
            is_busy |= self._fetch()

    def _fetch(self) -> bool:
        output = self.service.take_output()
        for connection_id, data in output:
            self._bodies[connection_id] += self._splitters[connection_id].feed(data)
            self.service.sent(connection_id, len(data))
        self.closed |= {*self.service.take_closed()}
        return bool(output)

    def connect(self, connection_id: int) -> None:
        self._splitters[connection_id], self._bodies[connection_id] = FrameSplitter(FRAME_BYTES_MAX_CLIENT), []
        self.service.connected(connection_id)

    def exchange(self, connection_id: int, *pieces: bytes) -> list[bytes]:
        """Send bytes, piece by piece. Return the bodies of the answers."""
        for piece in pieces:
            self.service.receive(connection_id, piece)
        self.settle()
        assert self.service.request_errors.total == 0, self.service.request_errors.places
        bodies, self._bodies[connection_id] = self._bodies[connection_id], []
        return bodies

    def hang_up(self, connection_id: int) -> None:
        self.service.disconnected(connection_id)
        del self._splitters[connection_id], self._bodies[connection_id]

    def is_limited(self) -> bool:
        """True once a fuzzed command has changed the store's limits, or turned authentication on. After such a command
        the store may refuse honest puts."""
        return self.machine.limits != StoreLimits() or self.machine.access.is_enabled != self.asks_for_users

    def serve_honest_client(self) -> None:
        """Assert that a put and a linearizable get of the honest client are answered correctly."""
        self._serial += 1
        value = b"value %d" % self._serial
        put = encode_request(2 * self._serial, command_request(Put(HONEST_KEY, value)))
        get = encode_request(2 * self._serial + 1, read_request(Get(HONEST_KEY), Consistency.LINEARIZABLE))
        (body,) = self.exchange(HONEST, frame(put))
        written = decode_response(body)
        (body,) = self.exchange(HONEST, frame(get))
        read = decode_response(body)
        assert (written.request_id, read.request_id) == (2 * self._serial, 2 * self._serial + 1)
        if self.node.core.role is not Role.LEADER:
            assert (written.code, read.code) == (Code.NOT_LEADER, Code.NOT_LEADER)
            return
        if written.code == Code.OK or not self.is_limited():
            assert written.code == Code.OK, written
            self._honest_value = value
        if self.machine.access.is_enabled and not self.asks_for_users:
            assert read.code == Code.UNAUTHENTICATED
            return
        assert read.code == Code.OK, read
        assert (read.fields[0][1] or [b""])[0] == self._honest_value, read

    def check(self) -> None:
        """Assert that no request has caused an unexpected error, that no resource is left open, and that the store is
        sound."""
        assert self.service.request_errors.total == 0, self.service.request_errors.places
        self.service.check()
        self.machine.check()


@sizes
def test_requests_of_any_structure_are_answered_or_refused(inputs: int, record_property: RecordProperty) -> None:
    """After a valid greeting, every request gets one answer, or its connection ends and the reason is sent."""
    codes: Counter[int] = Counter()
    with campaign(record_property, surface="requests of clients", seed=30, inputs=inputs) as random:
        structures, done, connection_id = Structures(random), 0, HONEST
        member = FuzzedMember()
        while done < inputs:
            connection_id += 1
            if connection_id % CONNECTIONS_PER_MEMBER == 0 or member.is_limited():
                member.check()
                member = FuzzedMember(
                    voters=random.choice((1, 1, 1, 3)),
                    level=random.choice((1, 2, 3)),
                    asks_for_users=random.random() < 0.3,
                )
            bodies = [_request(structures, random) for _ in range(random.randrange(1, FRAMES_MAX))]
            done += len(bodies)
            try:
                codes += _serve(member, connection_id, bodies, structures, random)
                member.serve_honest_client()
            except BaseException as error:
                shown = [body[:200].hex() for body in bodies]
                raise AssertionError(f"seed 30, at input {done}: {type(error).__name__}: {error}: {shown}") from error
        member.check()
    assert {Code.UNAUTHENTICATED, Code.PERMISSION_DENIED} <= set(codes), codes
    assert {Code.OK, 1, Code.MALFORMED, Code.UNSUPPORTED, Code.NOT_LEADER, Code.CHANGE_REFUSED} <= set(codes), codes
    assert Code.INTERNAL_ERROR not in codes


@sizes
def test_first_bytes_of_any_kind_are_greeted_or_refused(inputs: int, record_property: RecordProperty) -> None:
    """Hellos of any structure, arbitrary bytes, and frames in pieces, each followed by a request."""
    outcomes: Counter[str] = Counter()
    request = frame(encode_request(5, read_request(Get(HONEST_KEY), Consistency.LOCAL)))
    with campaign(record_property, surface="first bytes of clients", seed=31, inputs=inputs) as random:
        structures, member = Structures(random), FuzzedMember()
        for number in range(inputs):
            connection_id = HONEST + 1 + number
            if connection_id % (10 * CONNECTIONS_PER_MEMBER) == 0:
                member.check()
                member = FuzzedMember()
            data = _first_bytes(structures, random) + request
            try:
                outcomes[_greet(member, connection_id, structures.pieces(data))] += 1
                if number % 10 == 0:
                    member.serve_honest_client()
            except BaseException as error:
                text = f"seed 31, input {number}: {type(error).__name__}: {error}: {data[:300].hex()}"
                raise AssertionError(text) from error
        member.check()
    assert {"greeted", "refused", "awaited", "malformed"} <= set(outcomes), outcomes


def _request(structures: Structures, random: Random) -> bytes:
    """The body of a frame. It is mostly a request with some places changed."""
    base: Item = random.choice(REQUESTS)
    chosen = random.random()
    if chosen < 0.1:
        return cbor2.dumps(structures.item())
    item = base if chosen < 0.25 else structures.changed(base, random.choice((1, 1, 1, 2, 4)))
    body = cbor2.dumps(item)
    return (structures.changed_bytes(body) or b"\0") if chosen > 0.9 else body


def _serve(
    member: FuzzedMember, connection_id: int, bodies: list[bytes], structures: Structures, random: Random
) -> Counter[int]:
    """Send requests on a connection of their own. Return the number of answers by code."""
    member.connect(connection_id)
    member.exchange(connection_id, frame(encode_client_hello()))
    data = b"".join(map(frame, bodies))
    if member.asks_for_users and random.random() < 0.5:
        known = authenticate_request(random.choice(("ada", "eve")), "right")
        member.exchange(connection_id, frame(encode_request(1, known)))
    before = (member.machine.state_hash(), member.machine.access) if member.asks_for_users else None
    pieces = structures.pieces(data) if random.random() < 0.3 else [data]
    answers = [cbor2.loads(body) for body in member.exchange(connection_id, *pieces)]
    if connection_id in member.closed:
        assert [answer[0] for answer in answers if answer[1] == Code.MALFORMED] == [0], answers
    elif member.node.core.role is Role.LEADER:
        answered = len(answers) - sum(map(_is_later_message, answers)) + sum(map(_is_about_a_watch, bodies))
        assert answered == len(bodies), (answered, len(bodies))
    if before is not None:
        now, then = member.machine.access, before[1]
        assert now.is_enabled
        assert now.roles == then.roles
        assert [(each.name, each.roles, each.limits) for each in now.users.values()] == [
            (each.name, each.roles, each.limits) for each in then.users.values()
        ], "a user without the role root has changed more than the own password"
        connection = member.service._connections[connection_id]
        assert connection.user or member.machine.state_hash() == before[0], "nobody has changed the store"
    member.hang_up(connection_id)
    return Counter(answer[1] for answer in answers)


WATCH_IDS = (1_013, 1_014)
"""Only requests about watches have these ids, so an answer with such an id is a message about a watch."""


def _is_later_message(answer: list[Item]) -> bool:
    """True for a later message about an open watch; such a message is not an answer to a request."""
    return answer[0] in WATCH_IDS and answer[1] == Code.OK and len(answer) > 5 and answer[5] != MessageKind.CREATED


def _is_about_a_watch(body: bytes) -> bool:
    """True for requests about a watch, which are never answered themselves."""
    kinds = (RequestKind.UNWATCH, RequestKind.WATCH_WINDOW, RequestKind.WATCH_PROGRESS)
    return decode_request(body).kind in kinds


def _first_bytes(structures: Structures, random: Random) -> bytes:
    role = random.choice((HelloRole.CLIENT, HelloRole.CLIENT, HelloRole.CLIENT, HelloRole.PEER))
    ids = bytes(16) if role is HelloRole.PEER else b""
    hello = Hello(cluster_id=ids, group_id=0, node_id="s2" if ids else "", incarnation_id=ids, role=role)
    match random.randrange(6):
        case 0:
            return frame(hello.encode())
        case 1:
            return structures.changed_bytes(frame(hello.encode()))
        case 2:
            return random.choice((b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"PING\r\n", b"\xff" * 9))
        case 3:
            return frame(cbor2.dumps(structures.changed(["HWM-REFUSED", "busy", "words"], random.randrange(3))))
        case _:
            return frame(cbor2.dumps(structures.changed(cbor2.loads(hello.encode()), random.choice((1, 1, 2, 4)))))


def _greet(member: FuzzedMember, connection_id: int, pieces: list[bytes]) -> str:
    member.connect(connection_id)
    bodies = member.exchange(connection_id, *pieces)
    is_closed = connection_id in member.closed
    member.hang_up(connection_id)
    if not bodies:
        assert not is_closed
        return "awaited"  # The frame is not complete yet.
    first, *answers = bodies
    if isinstance(decode_hello(first), Refusal):
        assert is_closed
        return "refused"
    for body in answers:
        try:
            assert decode_response(body).request_id == 5
        except ProtocolError:
            assert is_closed
            return "malformed"
    return "greeted"

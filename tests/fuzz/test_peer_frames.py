"""The peer port gets hellos of strangers. It also gets forged or valid frames from a caller that has sent the hello of
a peer.

A forged message may be well-formed and false, such as a vote that was never given or an invented log. No member can
detect such a forgery. So each world is used for one batch only. In half of the batches only invalid input is delivered.
Afterwards the cluster must continue as if the input had never come. In the other batches everything is delivered, and
afterwards no member may fail.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from random import Random
from typing import Any

import cbor2
import trio

from harness.strangers.structures import INTEGERS, Structures
from raft import (
    FRAME_BYTES_MAX_PEER,
    AppendAccepted,
    AppendEntries,
    AppendRejected,
    Configuration,
    Entry,
    EntryKind,
    FrameSplitter,
    Hello,
    HelloRole,
    Identity,
    InstallSnapshot,
    InstallSnapshotProgress,
    Member,
    MembershipChange,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    ProtocolError,
    ReadIndexRequest,
    ReadIndexResponse,
    Refusal,
    Role,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
    encode_batch,
    encode_message,
    frame,
)
from raft.errors import NewerBuildNeeded, ValidationFault
from raft.node.peer_identity import PeerRefused
from raft.runtime.errors import ConnectionRefusedByPeer
from raft.runtime.handshake import HELLO_BYTES_MAX, receive_hello
from raft.runtime.transport import decode_peer_message
from raft.types import ReadMode
from tests.fuzz.campaign import RecordProperty, campaign, sizes
from tests.raft.support.memory_stores import ListMachine
from tests.raft.support.node_cluster import CLUSTER_ID, MS, OneNode, World, incarnation_of

HELLO_SEED, FRAME_SEED = 20_261, 20_262
BATCH_INPUTS = 100
"""The number of frames for one world. Making a world takes as long as thirty frames."""

ITEMS_MAX = 40
NUMBERS = tuple(number for number in INTEGERS if 0 <= number < 2**63)


class _Pieces(trio.abc.ReceiveStream):
    """A stream that gives these pieces, and then ends."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = [piece for piece in pieces if piece]
        self.taken_bytes = 0

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if not self._pieces:
            return b""
        piece = self._pieces.pop(0)
        if max_bytes is not None and len(piece) > max_bytes:
            piece, rest = piece[:max_bytes], piece[max_bytes:]
            self._pieces.insert(0, rest)
        self.taken_bytes += len(piece)
        return piece

    async def aclose(self) -> None:
        self._pieces = []


def _finished(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waits for something")


@sizes
def test_a_hello_is_taken_or_refused_and_keeps_little(inputs: int, record_property: RecordProperty) -> None:
    identity = Identity(cluster_id=CLUSTER_ID, group_id=0, node_id="s1", incarnation_id=incarnation_of("s1"))
    ends = dict.fromkeys(("taken", "refused", "garbage"), 0)
    with campaign(record_property, surface="peer hello", seed=HELLO_SEED, inputs=inputs) as random:
        structures = Structures(random)
        for _ in range(inputs):
            stream = _Pieces(structures.pieces(_hello_bytes(random, structures)))
            try:
                peer = _finished(receive_hello(stream, identity))
            except (PeerRefused, ConnectionRefusedByPeer):
                ends["refused"] += 1
            except ValidationFault:
                raise
            except ProtocolError:
                ends["garbage"] += 1
            else:
                assert len(peer.incarnation_id) == 16
                assert len(peer.node_id) <= 64
                assert len(peer.peer_address) <= 1000
                ends["taken"] += 1
            assert stream.taken_bytes <= 3 * HELLO_BYTES_MAX
    assert min(ends.values()) > inputs // 100, ends


def _hello_bytes(random: Random, structures: Structures) -> bytes:
    hello = Hello(
        cluster_id=CLUSTER_ID,
        group_id=0,
        node_id=random.choice(("s1", "s2", "s9")),
        incarnation_id=incarnation_of("s2"),
        role=random.choice((HelloRole.PEER, HelloRole.PEER, HelloRole.CLIENT)),
        peer_address=random.choice(("", "127.0.0.1:7102")),
        level_max=random.choice((1, 3)),
    )
    refusal = Refusal(random.choice(("removed", "other", "x")), "words")
    item = cbor2.loads((hello if random.random() < 0.9 else refusal).encode())
    data = frame(cbor2.dumps(structures.changed(item, random.randrange(3))))
    if random.random() < 0.2:
        data = structures.changed_bytes(data)
    return data + (random.randbytes(5) if random.random() < 0.1 else b"")


@sizes
def test_no_frame_of_a_peer_fails_a_member(inputs: int, record_property: RecordProperty) -> None:
    ends = dict.fromkeys(("closed", "refused", "taken", "spared"), 0)
    with campaign(record_property, surface="peer frames", seed=FRAME_SEED, inputs=inputs) as random:
        for batch in range(inputs // BATCH_INPUTS):
            only_refused = batch % 2 == 0
            attack = _Attack(random, _world(random), only_refused=only_refused)
            for _ in range(BATCH_INPUTS):
                ends[attack.once()] += 1
            if only_refused:
                _goes_on(attack.world)
    assert min(ends.values()) > inputs // 20, ends


class _Attack:
    """Frames to the members of one world, from a caller that has said the hello of a member or of a stranger."""

    def __init__(self, random: Random, world: World, *, only_refused: bool) -> None:
        self.world = world
        self._random, self._structures, self._only_refused = random, Structures(random), only_refused

    def once(self) -> str:
        """Send one frame, let the world run a little, and return the member's reaction to the frame."""
        random = self._random
        target = random.choice(list(self.world.members.values()))
        sender = random.choice([each for each in ("s1", "s2", "s3", "s3", "s9") if each != target.node_id])
        splitter = FrameSplitter(FRAME_BYTES_MAX_PEER)
        try:
            bodies = [body for piece in self._pieces(target, sender) for body in splitter.feed(piece)]
            messages = [decode_peer_message(body, 0) for body in bodies]
        except ValidationFault:
            raise
        except (ProtocolError, ConnectionRefusedByPeer):
            return "closed"
        return self._deliver(target, sender, messages)

    def _deliver(self, target: OneNode, sender: str, messages: list[Message]) -> str:
        node = target.node
        for message in messages:
            if self._only_refused and not _is_refused(target, sender, message):
                return "spared"
            before = _state(target)
            try:
                node.receive(sender, message)
            except ValidationFault:
                raise
            except ProtocolError:
                assert _state(target) == before, message
                return "refused"
            try:
                self._let_happen(target)
            except AssertionError as error:
                if not _is_own_entry_forged(error):
                    raise
                target.crash()
            # If a member gets data that only newer builds know, it must end with this error.
            if node.failure is not None:
                assert isinstance(node.failure.__cause__, NewerBuildNeeded), node.failure
                target.crash()
        return "taken"

    def _let_happen(self, target: OneNode) -> None:
        target.flush()
        if self._random.random() < 0.3:
            target.settle()
        if self._random.random() < 0.1:
            target.tick_to(target.now + self._random.randrange(200) * MS)
            target.settle()

    def _pieces(self, target: OneNode, sender: str) -> list[bytes]:
        random, structures = self._random, self._structures
        message = _message(random, target, sender)
        item = cbor2.loads(encode_message(0, message))
        kind_of_change = random.random()
        if kind_of_change < 0.5:
            item = _renumbered(random, item, target)
        elif kind_of_change < 0.85:
            item = structures.changed(item, random.choice((1, 1, 1, 2, 3)))
        data = frame(cbor2.dumps(item))
        if random.random() < 0.05:
            data = structures.changed_bytes(data)
        return structures.pieces(data)


def _is_own_entry_forged(error: AssertionError) -> bool:
    """True if a forger has caused another entry to be committed at the index and term of an entry that the member
    proposed as leader. The member can only detect this forgery when it applies the entry, and then it must stop."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return (Path(last.filename).name, last.name) == ("requests.py", "applied")


def _is_refused(target: OneNode, sender: str, message: Message) -> bool:
    core = target.node.core
    try:
        core._validation.check(sender, message, core._leader)
    except ProtocolError:
        return sender in core._state.peer_ids or core._accepts(sender, message)
    except NewerBuildNeeded:
        return False
    return False


def _state(target: OneNode) -> tuple[object, ...]:
    core = target.node.core
    return (
        core.term, core.voted_for, core.role, core.leader_id, core.commit_index, core.leader_commit_index,
        core.low_watermark, core.last_index, core.first_index, core.next_deadline, core.status().messages_waiting,
        core.configuration, core.has_ready(), len(target.disk.waiting), tuple(core.peers_status()), target.node.failure,
    )  # fmt: skip


# -- the messages


def _message(random: Random, target: OneNode, sender: str) -> Message:
    """A valid message that an honest member might send to `target`. Its numbers are near the target's own numbers."""
    core = target.node.core
    term = max(1, core.term + random.choice((0, 0, 0, 0, 1, 1, -1, 2)))
    last = core.last_index
    near = [0, core.commit_index, core.last_applied, last - 1, last, last + 1, core.snapshot_index, last + 9]
    index = max(0, random.choice(near))
    index_term = core.term_at(index)
    last_term = min(term, index_term if index_term is not None else core.term)
    counter = core._leader.reads.counter if core._leader is not None else 1
    number = random.choice((0, 1, counter, max(0, core._read_index_client._last_number)))
    match random.randrange(14):
        case 0:
            return PreVoteRequest(term=term, next_term=term + 1, last_index=index, last_term=last_term)
        case 1:
            return PreVoteResponse(term=term, next_term=core.term + 1, granted=random.random() < 0.7)
        case 2:
            return VoteRequest(term=term, last_index=index, last_term=last_term, transfer=random.random() < 0.5)
        case 3:
            return VoteResponse(term=term, granted=random.random() < 0.7)
        case 4 | 5 | 6:
            return AppendEntries(
                term=term,
                prev_index=index,
                prev_term=last_term,
                entries=_entries(random, index, last_term, term),
                commit_index=max(0, random.choice(near)),
                low_watermark=max(0, random.choice(near)),
                read_counter=number,
            )
        case 7 | 8:
            return AppendAccepted(
                term=term,
                match_index=index,
                last_applied=max(0, random.choice(near)),
                read_counter=random.choice((0, counter)),
                priority=random.choice((0, 0, 50)),
            )
        case 9:
            return AppendRejected(
                term=term,
                rejected_index=max(0, random.choice(near)),
                hint_index=index,
                hint_term=last_term,
                last_applied=max(0, random.choice(near)),
                read_counter=random.choice((0, counter)),
            )
        case 10:
            return _chunk(random, target, term)
        case 11:
            return InstallSnapshotProgress(
                term=term,
                transfer_id=_transfer_id(target),
                next_offset=random.choice((-1, 0, 40, 80, target.snapshots.latest().size_bytes, 2**40)),
                last_applied=max(0, random.choice(near)),
            )
        case 12:
            return random.choice((TimeoutNow(term=term), TimeoutNow(term=term, last_index=index)))
        case _:
            if random.random() < 0.5:
                return ReadIndexRequest(term=term, number=number)
            return ReadIndexResponse(term=term, number=number, read_index=max(0, random.choice(near)))


def _renumbered(random: Random, item: list[Any], target: OneNode) -> list[Any]:
    """The same message with one or two numbers replaced by others that the encoding allows."""
    core, item = target.node.core, list(item)
    places = [place for place, each in enumerate(item) if type(each) is int and place >= 2]
    near = [core.term + 1, core.last_index, core.last_index + 1, core.commit_index, core.commit_index + 1]
    for place in random.sample(places, min(len(places), random.choice((1, 1, 2)))):
        item[place] = random.choice((random.choice(near), random.choice(NUMBERS), random.randrange(12)))
    return item


def _entries(random: Random, prev_index: int, prev_term: int, term: int) -> tuple[Entry, ...]:
    entries = []
    for index in range(prev_index + 1, prev_index + 1 + random.choice((0, 0, 1, 1, 2, 5))):
        entry_term = max(1, random.choice((prev_term, prev_term, term)))
        prev_term = max(prev_term, entry_term)
        kind = random.choice((EntryKind.COMMANDS, EntryKind.COMMANDS, EntryKind.NO_OP, EntryKind.CONFIGURATION))
        if kind is EntryKind.CONFIGURATION:
            members = ("s1", "s2", "s3", "s9")[: random.choice((2, 3, 4))]
            payload = Configuration.of([Member(node_id) for node_id in members]).encode()
        else:
            commands = [cbor2.dumps(n) for n in range(random.choice((1, 3, 30)))] if kind is EntryKind.COMMANDS else []
            payload = encode_batch(random.choice((0, 10**9, 2**40, 2**58, 2**61, 2**62)), commands)
        entries.append(Entry(index, prev_term, kind, payload))
    return tuple(entries)


def _chunk(random: Random, target: OneNode, term: int) -> InstallSnapshot:
    """A chunk of the target's own snapshot file. The chunk may claim a later position or belong to a running
    transfer."""
    info = target.snapshots.latest()
    offset = random.choice((0, 0, 40, 80))
    data = target.snapshots.read(info, offset, random.choice((40, 40, 10_000))) or b"x"
    return InstallSnapshot(
        term=term,
        transfer_id=random.choice((1, _transfer_id(target))),
        snapshot_index=random.choice((info.header.index, target.node.core.last_index + 5)),
        snapshot_term=max(1, min(term, info.header.term + random.choice((0, 1)))),
        total_bytes=max(info.size_bytes, offset + len(data)),
        offset=offset,
        data=data,
    )


def _transfer_id(target: OneNode) -> int:
    transfers = target.node._snapshots._sender._transfers.values()
    return next((transfer.transfer_id for transfer in transfers), 1)


# -- the receivers


class _LenientMachine(ListMachine):
    """A state machine that skips commands it cannot read, because only a forged leader causes such commands to be
    committed."""

    def apply(self, entry: Entry) -> Sequence[Any]:
        try:
            return super().apply(entry)
        except ProtocolError:
            return []


class _World(World):
    machine_type = _LenientMachine


def _world(random: Random) -> World:
    """A leader and followers, in one of several states. Strangers may have said hello, too."""
    small = {"snapshot_chunk_bytes": 40, "snapshot_log_bytes": 600, "retention_bytes_max": 800}
    bounds: dict[str, Any] = small if random.random() < 0.5 else {}
    world = _World(**bounds, lease_reads=random.random() < 0.2)
    world.carries = lambda _sender, receiver, _message: receiver in world.members  # There is no member s9.
    leader = world.elect()
    for number in range(random.randrange(ITEMS_MAX)):
        leader.propose(number, number)
        if number % 5 == 0:
            world.exchange()
    world.run_for(20)
    for member in world.members.values():
        member.pins._pins["s9"] = incarnation_of("s9")
    random.choice(STATES)(random, world, leader)
    return world


def _calm(_random: Random, _world: World, _leader: OneNode) -> None:
    """The state in which no operation is under way."""


def _campaigning(random: Random, world: World, leader: OneNode) -> None:
    """A follower hears no other member. It may already have pre-votes."""
    follower = random.choice(world.followers())
    follower.tick_to(follower.now + 700 * MS)
    follower.disk_hangs = random.random() < 0.5
    follower.flush()
    if random.random() < 0.7 and follower.node.core.role is Role.PRE_CANDIDATE:
        answer = PreVoteResponse(term=follower.node.core.term, next_term=follower.node.core.term + 1, granted=True)
        follower.node.receive(leader.node_id, answer)
        follower.flush()
    follower.disk_hangs = False


def _deposed(_random: Random, world: World, leader: OneNode) -> None:
    """The other members have elected a leader, and the old leader does not know this."""
    world.cut_off.add(leader.node_id)
    leader.propose("lost", 1_000)
    for member in world.followers():
        member.tick_to(member.now + 700 * MS)
    _level_clocks(world)
    world.run(lambda: any(m.node.core.role is Role.LEADER for m in world.members.values() if m is not leader))
    world.cut_off.clear()


def _behind(random: Random, world: World, leader: OneNode) -> None:
    """A follower lacks many entries, perhaps more entries than the log still has. These entries are being sent to the
    follower."""
    follower = random.choice([member for member in world.members.values() if member is not leader])
    world.cut_off.add(follower.node_id)
    for number in range(30):
        leader.propose(f"{number} while it was away", 2_000 + number)
        world.exchange()
    world.run_for(60)
    world.cut_off.clear()
    leader.node.peer_unreachable(follower.node_id)
    leader.tick_to(leader.now + 60 * MS)
    leader.settle()
    for to, message in leader.sent:
        if to == follower.node_id:
            follower.node.receive(leader.node_id, message)
    leader.sent.clear()


def _reading(random: Random, world: World, leader: OneNode) -> None:
    """Every member has an open read, and the leader has an open proposal."""
    for number, member in enumerate(world.members.values()):
        others = (ReadMode.FOLLOWER, ReadMode.BOUNDED_STALENESS)
        mode = ReadMode.READ_INDEX if member is leader else random.choice(others)
        member.node.read_all([3_000 + number], mode, age_ns_max=1)
        member.flush()
    leader.propose("open", 4_000)
    leader.flush()


def _changing(_random: Random, _world: World, leader: OneNode) -> None:
    """A member is being added, and nobody has acknowledged the change yet."""
    leader.node.propose_change(MembershipChange(add=(Member("s9"),)), 5_000)
    leader.flush()


STATES: tuple[Callable[[Random, World, OneNode], None], ...] = (
    _calm, _campaigning, _deposed, _behind, _reading, _changing,
)  # fmt: skip


def _level_clocks(world: World) -> None:
    world.now = max(world.now, *(member.now for member in world.members.values()))
    for member in world.members.values():
        member.tick_to(world.now)


def _goes_on(world: World) -> None:
    """The cluster elects, commits and agrees."""
    _level_clocks(world)
    leader = world.elect()
    leader.propose("after all", 9_000)
    world.run(lambda: all("after all" in member.machine.items for member in world.members.values()))
    hashes = {member.machine.state_hash() for member in world.members.values()}
    assert len(hashes) == 1
    assert all(member.node.failure is None for member in world.members.values())

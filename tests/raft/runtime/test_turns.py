"""A member that has to catch up uses many short turns, and all messages are handled in order."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
import trio
import trio.testing

from raft import Configuration, Identity, LevelRange, Member, RaftConfig, Role
from raft.encoding.command_batch import encode_batch
from raft.encoding.frames import frame
from raft.node.apply import RUN_MAX
from raft.protocol.codec import encode_message
from raft.protocol.messages import AppendEntries, Message
from raft.runtime import Transport
from raft.runtime.handshake import PeerHello
from raft.runtime.transport import TURN_ENTRIES_MAX
from raft.types import Entry, EntryKind
from tests.raft.support.machines import CLUSTER_ID, Machine, until

pytestmark = pytest.mark.timeout(30)

A_COMMAND = encode_batch(0, [b"\x01"])
IDENTITY = Identity(cluster_id=CLUSTER_ID, group_id=0, node_id="s1", incarnation_id=bytes(16))


def appends(first_index: int, sizes: Sequence[int], *, commit_index: int = 0) -> list[AppendEntries]:
    """A series of appends. For each append, `sizes` has the number of its small entries."""
    found = []
    for size in sizes:
        entries = tuple(Entry(first_index + n, 1, EntryKind.COMMANDS, A_COMMAND) for n in range(size))
        found.append(
            AppendEntries(
                term=1,
                prev_index=first_index - 1,
                prev_term=min(first_index - 1, 1),
                entries=entries,
                commit_index=commit_index,
                low_watermark=0,
                read_counter=0,
            )
        )
        first_index += size
    return found


class Turns(trio.abc.Instrument):
    """Counts the turns of the loop."""

    def __init__(self) -> None:
        self.count = 0
        trio.lowlevel.add_instrument(self)

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


class Taken:
    """Records which messages were taken, and in which turn of the loop."""

    def __init__(self) -> None:
        self._turns = Turns()
        self.taken: list[tuple[int, list[int]]] = []
        self.messages: list[Message] = []

    def receive(self, peer_id: str, messages: Sequence[Message]) -> None:
        assert peer_id == "s2"
        self.messages += messages
        self.taken.append((self._turns.count, [len(m.entries) for m in messages if isinstance(m, AppendEntries)]))

    def peer_hello(self, peer_id: str, incarnation_id: bytes, levels: LevelRange) -> None: ...

    def peer_unreachable(self, peer_id: str) -> None: ...

    def peer_gone(self, peer_id: str) -> None: ...

    def peer_refused(self, peer_id: str, code: str, reason: str) -> None: ...


async def taken_of(messages: Sequence[Message]) -> Taken:
    """Returns a function that passes the messages of one read on, as the transport does."""
    taken = Taken()
    transport = Transport(
        identity=IDENTITY, configuration=Configuration.of([Member("s1"), Member("s2")]), random=Random(1)
    )
    transport._events = taken
    ours, theirs = trio.testing.memory_stream_pair()
    await theirs.send_all(b"".join(frame(encode_message(0, message)) for message in messages))
    await theirs.aclose()
    with trio.fail_after(20):
        await transport._receive(ours, PeerHello("s2", bytes(16)), trio.CancelScope())  # type: ignore[arg-type]
    return taken


async def test_what_one_read_brings_is_taken_in_turns_of_few_entries() -> None:
    """While a follower catches up, it is sent thousands of entries. A turn takes at most `TURN_ENTRIES_MAX`, so other
    tasks can run."""
    third = TURN_ENTRIES_MAX // 3 + 1
    messages = appends(1, [third] * 7)

    taken = await taken_of(messages)

    assert [sizes for _, sizes in taken.taken] == [[third] * 3, [third] * 3, [third]]
    turns = [turn for turn, _ in taken.taken]
    assert len(set(turns)) == 3, turns
    assert taken.messages == messages


@pytest.mark.parametrize("sizes", [[1], [0, 1, 1, 0], [TURN_ENTRIES_MAX], [0, TURN_ENTRIES_MAX]])
async def test_a_few_messages_are_taken_at_once(sizes: list[int]) -> None:
    taken = await taken_of(appends(1, sizes))

    assert [each for _, each in taken.taken] == [sizes]


async def test_a_follower_that_is_behind_applies_one_slice_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several slices in a row would make a long turn, and slices exist to prevent long turns."""
    turns, in_turns = Turns(), []
    with trio.fail_after(20):
        config = RaftConfig(
            apply_commands_max=1,
            apply_bytes_max=10_000,
            election_timeout_min_ns=60_000_000_000,  # The member must not campaign, even on a busy machine.
            election_timeout_max_ns=120_000_000_000,
        )
        machine = Machine("s1", ["s1", "s2"], config=config)
        async with trio.open_nursery() as nursery:
            await nursery.start(machine.driver.run)
            driver, node = machine.driver, machine.node
            apply_slice = node._apply_slice

            def apply_slice_and_note_the_turn() -> None:
                apply_slice()
                in_turns.append(turns.count)

            monkeypatch.setattr(node, "_apply_slice", apply_slice_and_note_the_turn)
            driver.peer_hello("s2", b"s2".ljust(16, b"."))
            await trio.testing.wait_all_tasks_blocked()
            driver.receive("s2", [*appends(1, [1_000]), *appends(1_001, [0], commit_index=1_000)])
            await until(lambda: node.core.last_applied == 1_000)
            assert node.core.role is Role.FOLLOWER
            nursery.cancel_scope.cancel()

    assert len(in_turns) == len(set(in_turns)) >= 1_000 // RUN_MAX

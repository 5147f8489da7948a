"""Each kind of stranger reaches a port of its target, even if the server hangs up early."""

from __future__ import annotations

from collections import Counter
from random import Random

import cbor2
import pytest
import trio

from harness.strangers import wire
from harness.strangers.crowd import KINDS, StrangerKind
from harness.strangers.stranger import Stranger
from harness.strangers.structures import Structures
from harness.strangers.wire import TargetMember, frame

SECONDS_MAX = 5.0
HELLO = ["HWM", 1, 1, 0, bytes(16), 0, "n1", bytes(16), 1]
MEMBERSHIP = [1, 0, 1, 0, "n1", {"members": [{"node_id": name, "incarnation_id": bytes(16)} for name in ("n1", "n2")]}]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
async def test_each_kind_of_stranger_reaches_a_port_of_its_target(kind: StrangerKind) -> None:
    reached = trio.Event()

    async def serve(stream: trio.SocketStream) -> None:
        """Send a hello and the list of members, as a member does. A silent caller sends nothing, so it has reached the
        server when it connects."""
        async with stream:
            if kind.name == "silent-callers" or await stream.receive_some(65_536):
                reached.set()
            await stream.send_all(frame(HELLO) + frame(MEMBERSHIP))
            await stream.receive_some(65_536)

    with trio.fail_after(SECONDS_MAX):
        async with trio.open_nursery() as nursery:
            listeners: list[trio.SocketListener] = await nursery.start(trio.serve_tcp, serve, 0)
            port = listeners[0].socket.getsockname()[1]
            target = TargetMember(node_id="n1", client_port=port, peer_port=port, metrics_port=port)
            random = Random(1)
            stranger = Stranger(target, [target], random, Structures(random), Counter())
            nursery.start_soon(_visit, kind, stranger)
            await reached.wait()
            nursery.cancel_scope.cancel()


async def _visit(kind: StrangerKind, stranger: Stranger) -> None:
    try:
        await kind.visit(stranger)
    except* (OSError, trio.BrokenResourceError):
        pass  # In this case the server hangs up early.


def test_structures_are_the_same_for_the_same_seed_and_can_all_be_sent() -> None:
    def some(seed: int) -> list[bytes]:
        structures = Structures(Random(seed))
        item = [1, 3, 1, [2, b"key"], {"a": 1}]
        return [cbor2.dumps(structures.changed(item, 2)) for _ in range(500)]

    assert some(1) == some(1)
    assert some(1) != some(2)
    assert len(set(some(1))) > 300


def test_changed_bytes_differ_and_pieces_are_the_whole() -> None:
    structures = Structures(Random(3))
    data = bytes(range(100))

    assert sum(structures.changed_bytes(data) != data for _ in range(200)) > 190
    assert all(b"".join(structures.pieces(data)) == data for _ in range(200))


def test_no_command_of_a_stranger_can_change_the_store() -> None:
    """If strangers changed the store, the honest clients' history would contain values that no honest client wrote."""
    structures = Structures(Random(4))
    usual = [wire.put(1, b"k", b"v"), [2, 3, 1, [2, b"k"]], [3, 2, [0, 0, 0, 3, b"k"]]]
    requests = [wire.without_effect(structures.changed(usual[i % 3], 1 + i % 3)) for i in range(20_000)]
    sessions = [
        request[2][0]
        for request in requests
        if isinstance(request, list) and len(request) > 2 and request[1] == 2 and isinstance(request[2], list)
    ]

    assert len(sessions) > 1_000
    assert set(sessions) == {wire.NO_SESSION}

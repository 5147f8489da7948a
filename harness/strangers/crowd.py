"""The table of all kinds of strangers: the action of each kind, and how often it is repeated.

Each kind has a coroutine for one visit, which does one thing to one member and returns. For each member, a kind has a
number of workers, which repeat the visit with pauses. A visit fails if the member is down, refuses the visit, or closes
the connection. Such a visit is counted, and is not an error. A run is judged only by its honest clients and its
members.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random

import trio

from harness.strangers import connection_holders, foreign_protocols, odd_requests, peer_impostors
from harness.strangers.stranger import Stranger
from harness.strangers.structures import Structures
from harness.strangers.wire import TargetMember


@dataclass(frozen=True, slots=True, kw_only=True)
class StrangerKind:
    """A kind of stranger.

    Each member gets `workers` strangers, which pause for up to `pause_seconds` between visits.
    """

    name: str
    visit: Callable[[Stranger], Awaitable[None]]
    workers: int = 1
    pause_seconds: float = 1.0


KINDS: tuple[StrangerKind, ...] = (
    StrangerKind(name="changed-requests", visit=odd_requests.send_changed_requests, pause_seconds=0.5),
    StrangerKind(name="unhashable-consistency", visit=odd_requests.send_unhashable_consistency, pause_seconds=2.0),
    StrangerKind(name="state-hash-askers", visit=odd_requests.ask_for_state_hashes, pause_seconds=2.0),
    StrangerKind(name="session-flood", visit=odd_requests.register_sessions, pause_seconds=1.0),
    StrangerKind(name="odd-members", visit=odd_requests.add_impossible_members, pause_seconds=5.0),
    StrangerKind(name="idle-clients", visit=connection_holders.greet_and_idle, workers=1_044, pause_seconds=60.0),
    StrangerKind(name="silent-callers", visit=connection_holders.say_nothing, workers=70, pause_seconds=5.0),
    StrangerKind(name="half-frames", visit=connection_holders.never_finish_a_frame, workers=50, pause_seconds=20.0),
    StrangerKind(name="non-readers", visit=connection_holders.never_read, workers=30, pause_seconds=20.0),
    StrangerKind(
        name="foreign-protocols", visit=foreign_protocols.speak_another_protocol, workers=2, pause_seconds=1.0
    ),
    StrangerKind(name="peer-impostors", visit=peer_impostors.claim_an_impossible_term, pause_seconds=2.0),
    StrangerKind(name="changed-peer-frames", visit=peer_impostors.say_changed_hellos, pause_seconds=0.5),
)


async def run_crowd(
    targets: Sequence[TargetMember], seed: int, counts: Counter[str], kinds: Sequence[StrangerKind]
) -> None:
    """Visit all targets until cancelled.

    `counts` gets the numbers of visits and of their outcomes, by kind of stranger.
    """
    async with trio.open_nursery() as nursery:
        for kind in kinds:
            for target in targets:
                for worker in range(kind.workers):
                    random = Random(f"{seed} {kind.name} {target.node_id} {worker}")
                    stranger = Stranger(target, targets, random, Structures(random), counts)
                    nursery.start_soon(_visit_forever, kind, stranger)


async def _visit_forever(kind: StrangerKind, stranger: Stranger) -> None:
    while True:
        await trio.sleep(stranger.random.uniform(0.1, 1.0) * kind.pause_seconds)
        stranger.counts[kind.name] += 1
        try:
            await kind.visit(stranger)
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            stranger.counts[f"{kind.name}: cut off"] += 1

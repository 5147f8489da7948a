"""The cells that are measured, the contenders that take part in them, and the three plans (full, quick, smoke)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.load.spec import LoadSpec

KEY_BYTES = 16
SHAPES: tuple[tuple[int, int], ...] = ((1, 1), (16, 4), (64, 8), (256, 8), (1024, 16))
"""The usual pairs (requests in flight, connections). The pairs are the same for every system that has connections."""

USUAL_VALUE_BYTES = 128
USUAL_KEYS = 100_000
USUAL_MEMBERS = 3
OPEN_LOOP_CONNECTIONS = 16
MIXED_PUT_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Group:
    """The settings of a cluster.

    The cluster is started and filled once per repetition, and serves all cells of the group.
    """

    members: int = USUAL_MEMBERS
    existing_keys: int = USUAL_KEYS
    value_bytes: int = USUAL_VALUE_BYTES


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement.

    Either `in_flight` is not 0 (the number of requests in a closed loop), or `rate` is not 0 (requests per second in an
    open loop).
    """

    group: Group
    work: str  # put, get, mixed
    in_flight: int
    connections: int
    rate: int = 0

    @property
    def label(self) -> str:
        """The name of the work in results.

        For cells with many keys, and for open loops, the label differs from `work`.
        """
        keys = "" if self.group.existing_keys <= USUAL_KEYS else f"_{self.group.existing_keys}_keys"
        return self.work + keys + ("_at_rate" if self.rate else "")


@dataclass(frozen=True, slots=True)
class Contender:
    """A system, and the way in which load is put on it. `name` is the field `system` in its rows."""

    name: str
    kind: str  # The kind of its servers: highwatermark, etcd, pysyncobj, bare.
    generator: str  # lean, client, in-process
    tuned: bool = False
    options: tuple[str, ...] = ()  # Further options of its servers.
    tls_ca: str | None = None  # The file of the authority, if clients use TLS.
    tls_cert: str | None = None  # The certificate of clients and its key, if clients use TLS.

    def takes_part(self, cell: Cell) -> bool:
        """Return False if the system does not offer this work, or if this cell needs no measurement of this
        contender."""
        if self.generator == "lean" and self.kind != "bare":
            return True
        usual = not cell.rate and cell.group.members == USUAL_MEMBERS and cell.group.value_bytes == USUAL_VALUE_BYTES
        if not usual or cell.group.existing_keys > USUAL_KEYS:
            return False
        # PySyncObj and the bare path have no linearizable read.
        return cell.work == "put" or self.kind not in ("pysyncobj", "bare")


CONTENDERS: tuple[Contender, ...] = (
    Contender("highwatermark", "highwatermark", "lean"),
    Contender("etcd", "etcd", "lean"),
    Contender("pysyncobj", "pysyncobj", "in-process"),
    Contender("pysyncobj-tuned", "pysyncobj", "in-process", tuned=True),
    Contender("highwatermark-client", "highwatermark", "client"),
    Contender("bare-path", "bare", "lean"),
    Contender("bare-path-records", "bare", "lean", options=("records",)),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan. Cells of the same group are adjacent in `cells`. Each repetition measures all cells on all contenders."""

    name: str
    cells: tuple[Cell, ...]
    repetitions: int
    seconds: float
    warmup_seconds: float


def closed(group: Group, works: Iterable[str], shapes: Iterable[tuple[int, int]]) -> list[Cell]:
    """Return closed-loop cells, with a fixed number of requests in flight: the next request leaves when an answer
    arrives.
    """
    return [Cell(group, work, in_flight, connections) for work in works for in_flight, connections in shapes]


def open_loop(group: Group, rates: Iterable[int]) -> list[Cell]:
    """Return open-loop cells: requests leave when they are due, whether or not earlier requests were answered."""
    return [Cell(group, "put", 0, OPEN_LOOP_CONNECTIONS, rate) for rate in rates]


def full_plan() -> Plan:
    """Return the plan with all cells, which takes about half an hour."""
    usual = Group()
    at_64 = ((64, 8),)
    cells = closed(usual, ("put", "get", "mixed"), SHAPES)
    cells += open_loop(usual, (500, 1_000, 2_000, 4_000, 8_000, 16_000))
    for value_bytes in (16, 1_024, 16_384, 65_536):
        # Fewer keys for large values: 10⁵ values of 64 KiB would be slow to fill, and use up most of etcd's quota.
        keys = 10_000 if value_bytes <= 1_024 else 2_000
        group = Group(existing_keys=keys, value_bytes=value_bytes)
        cells += closed(group, ("put", "get"), at_64)
    cells += closed(Group(existing_keys=1_000_000), ("put", "get"), ((64, 8), (256, 8)))
    for members in (1, 5, 7):
        cells += closed(Group(members=members), ("put", "get"), at_64)
    return Plan("full", tuple(cells), repetitions=3, seconds=2.5, warmup_seconds=0.8)


def quick_plan() -> Plan:
    """Return a plan of puts and gets at three levels of load, which takes two to three minutes.

    The results of this plan are noisier than those of the full plan. Only the full plan supports claims.
    """
    shapes = ((1, 1), (64, 8), (1024, 16))
    return Plan("quick", tuple(closed(Group(existing_keys=10_000), ("put", "get"), shapes)), 3, 1.0, 0.4)


def smoke_plan() -> Plan:
    """Return a plan with less than a second per cell, which shows only that every generator works with its servers."""
    cells = closed(Group(existing_keys=500), ("put", "get", "mixed"), ((8, 2),))
    cells += open_loop(Group(existing_keys=500), (300,))
    cells += closed(Group(existing_keys=50, value_bytes=65_536), ("put", "get"), ((8, 2),))
    return Plan("smoke", tuple(cells), repetitions=1, seconds=0.6, warmup_seconds=0.2)


PLANS = {"full": full_plan, "quick": quick_plan, "smoke": smoke_plan}


def narrowed(
    plan: Plan,
    *,
    works: Sequence[str] = (),
    in_flight: Sequence[int] = (),
    value_bytes: Sequence[int] = (),
    members: Sequence[int] = (),
    existing_keys: Sequence[int] = (),
    rates: Sequence[int] = (),
) -> Plan:
    """Return a plan with the cells that the options name, even those that are not in `plan`.

    Without options, return `plan`.
    """
    if not (works or in_flight or value_bytes or members or existing_keys or rates):
        return plan
    connections = dict(SHAPES)
    usual = plan.cells[0].group
    groups = [
        Group(members=count, existing_keys=keys, value_bytes=size)
        for count, keys, size in itertools.product(
            members or (usual.members,), existing_keys or (usual.existing_keys,), value_bytes or (usual.value_bytes,)
        )
    ]
    shapes = [(n, connections.get(n) or next(c for c in (16, 8, 4, 2, 1) if n % c == 0)) for n in in_flight]
    cells = []
    for group in groups:
        if not rates or in_flight:
            kept = {cell.work: None for cell in plan.cells if not cell.rate}
            in_plan = {(cell.in_flight, cell.connections): None for cell in plan.cells if cell.in_flight}
            cells += closed(group, works or tuple(kept), shapes or tuple(in_plan))
        cells += open_loop(group, rates)
    return Plan(plan.name, tuple(cells), plan.repetitions, plan.seconds, plan.warmup_seconds)


def usual_puts(warmup_seconds: float, seconds: float) -> LoadSpec:
    """Puts of the usual values to the usual keys. The caller sets the endpoints, the number in flight and the seed."""
    return LoadSpec(
        kind="highwatermark",
        endpoints=[],
        work="put",
        in_flight=256,
        connections=8,
        rate=0,
        value_bytes=USUAL_VALUE_BYTES,
        existing_keys=USUAL_KEYS,
        seed=0,
        warmup_seconds=warmup_seconds,
        seconds=seconds,
    )

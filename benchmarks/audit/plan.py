"""The cases. A case is an engine with a history. A case runs in a process of its own, and gives one row of results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from benchmarks.audit.histories import SHAPES, Shape
from spark_audit import ALL_FAULTS

SEED = 20261121
LOCAL, SPARK, KERNEL, RIVAL = "local", "spark", "kernel", "porcupine"
FAULT_OPERATIONS = 20_000
FAULTY = "10 clients, 12 keys, listings and transactions"
FAULTY_APPENDS = "10 clients, 200 keys, appends"
HUGE = 10_000_000

_GROWTH = SHAPES[1]
ONE_KEY = Shape(name="50 clients, 1 key", clients=50, keys=1, unknown_share=0.01)


WATCHED = replace(_GROWTH, name=f"{_GROWTH.name}, 2 watches", watches=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An engine with a history.

    If `shape` is None, the generator in `spark_audit` makes the history, and injects `fault` if there is one.
    """

    engine: str
    operations: int
    shape: Shape | None = None
    fault: str | None = None
    seconds_max: float = 120.0

    @property
    def name(self) -> str:
        if self.shape is not None:
            return self.shape.name
        return FAULTY_APPENDS if self.fault and "append" in self.fault else FAULTY

    @property
    def unknown_share(self) -> float:
        return self.shape.unknown_share if self.shape is not None else 0.01

    @property
    def history(self) -> tuple[str, int, float, str | None]:
        """The values that identify the history. Cases with the same value are measured on the same files."""
        without_revisions = "" if self.shape is None or self.shape.revisions else ", no revisions"
        return (self.name + without_revisions, self.operations, self.unknown_share, self.fault)


def full(rival: bool) -> Iterator[Case]:
    """Yield all cases. A run of all of them takes about half an hour."""
    yield from _common((10_000, 100_000, 1_000_000), rival)
    for engine in (LOCAL, SPARK):
        yield Case(engine=engine, shape=WATCHED, operations=1_000_000, seconds_max=270)
    growing = _shape(_GROWTH, 0.01)
    for operations in (100_000, 1_000_000):
        yield Case(engine=SPARK, shape=growing, operations=operations)
    for shape in (*(_shape(shape, share) for shape in SHAPES for share in (0.0, 0.01)), ONE_KEY):
        yield Case(engine=SPARK, shape=shape, operations=HUGE, seconds_max=270)
    for shape in (growing, ONE_KEY):
        yield Case(engine=LOCAL, shape=shape, operations=HUGE, seconds_max=270)
        if rival:
            yield Case(engine=RIVAL, shape=shape, operations=HUGE, seconds_max=30)


def quick(rival: bool) -> Iterator[Case]:
    """Yield a few small cases, which show within two minutes that everything works.

    The times of these cases support no claim.
    """
    yield from _common((10_000,), rival)
    yield Case(engine=SPARK, shape=_shape(_GROWTH, 0.01), operations=10_000)
    yield Case(engine=LOCAL, shape=WATCHED, operations=10_000)


def _common(sizes: tuple[int, ...], rival: bool) -> Iterator[Case]:
    for operations in sizes:
        for shape in SHAPES:
            for unknown_share in (0.0, 0.01):
                made = _shape(shape, unknown_share)
                yield Case(engine=LOCAL, shape=made, operations=operations)
                if rival:
                    yield Case(engine=RIVAL, shape=made, operations=operations, seconds_max=30)
    without_revisions = _without_revisions(_shape(_GROWTH, 0.01))
    yield Case(engine=LOCAL, shape=without_revisions, operations=sizes[-1])
    if rival:
        yield Case(engine=RIVAL, shape=without_revisions, operations=sizes[-1], seconds_max=30)
    for fault in (None, *ALL_FAULTS):  # For comparison, the first case has a history of the same kind without a fault.
        yield Case(engine=LOCAL, operations=FAULT_OPERATIONS, fault=fault)


def _shape(shape: Shape, unknown_share: float) -> Shape:
    return replace(shape, unknown_share=unknown_share)


def _without_revisions(shape: Shape) -> Shape:
    """Return the shape without revisions and deletions.

    Without revisions, nobody can tell which write made a key absent.
    """
    puts = shape.put_share + shape.delete_share
    return replace(shape, name=f"{shape.name}, no revisions", revisions=False, put_share=puts, delete_share=0.0)

"""The verdict of an audit.

Each property has a status of its own. If one property is undecided, the verdict still shows the status of all others,
and is not a success.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

LINEARIZABLE, VIOLATION, UNDECIDED = "linearizable", "violation", "undecided"
EXIT_CODES = {LINEARIZABLE: 0, VIOLATION: 3, UNDECIDED: 4}
SHOWN_MAX = 20  # The maximum number of findings of one property that are kept as examples. All findings are counted.

_ORDER_PROPERTIES = {
    "keys": "keys are linearizable",
    "order": "revisions follow real time",
    "unique": "revisions are unique",
    "store": "listings, transactions",
    "weak": "local and pinned reads",
}
# Properties of histories with watches, leases, locks, appends or reads at a revision.
SERVICE_PROPERTIES = {
    "watch_once": "events once, in order",
    "watch_gap": "events without a gap",
    "watch_source": "events are true",
    "watch_bookmark": "bookmarks of watches",
    "watch_resume": "watches go on in place",
    "watch_previous": "records before events",
    "leases": "leases",
    "locks": "fences of locks rise",
    "historic": "reads at a revision",
    "appends": "keys of appends",
    "consumers": "records of groups once",
}
# Properties of histories with writes that have an acknowledgement level.
LEVEL_PROPERTIES = {
    "outcomes": "accepted writes",
    "in_sync": "copies of in-sync writes",
}
PROPERTIES = _ORDER_PROPERTIES | SERVICE_PROPERTIES | LEVEL_PROPERTIES


@dataclass(frozen=True, slots=True)
class ShownOperation:
    """An operation of a counterexample. `return_ns`: None if the outcome is unknown."""

    op_id: int
    client: str
    op: str
    call_ns: int
    return_ns: int | None
    revision: int | None
    words: str


@dataclass(frozen=True, slots=True)
class Violation:
    """A violation of a property.

    `operations`: the operations that show the violation. For the property `keys`, these operations have no valid order;
    for another property, they contradict each other. `text`: the reason.
    """

    property: str
    run_id: str
    key: str | None
    text: str
    operations: tuple[ShownOperation, ...] = ()
    method: str = ""

    def words(self) -> str:
        """Return the violation in a sentence."""
        where = f"key {self.key}: " if self.key is not None else ""
        return f"{where}{self.text}"


@dataclass(frozen=True, slots=True)
class Undecided:
    """A question that could not be decided, and the reason."""

    property: str
    run_id: str
    key: str | None
    reason: str


@dataclass(slots=True)
class Property:
    """The counts of one property.

    `checked`: for the property `keys`, the number of keys; for every other property, the number of operations, events,
    bookmarks or parts of watches that were judged. `violated`, `undecided`: the number of findings, including those
    that are not kept as examples.
    """

    checked: int = 0
    violated: int = 0
    undecided: int = 0

    @property
    def status(self) -> str:
        """VIOLATION if anything violates the property, else UNDECIDED if anything is undecided, else LINEARIZABLE."""
        return VIOLATION if self.violated else UNDECIDED if self.undecided else LINEARIZABLE


@dataclass(slots=True)
class Verdict:
    """The verdict on the given histories. `record` adds findings; `status` follows from the properties.

    `properties`: has the properties of SERVICE_PROPERTIES only if a history has rows of services. `watches`, `events`:
    the number of watches, and of the events that they delivered. `settled`: the number of unknown writes that were
    settled, because an event, or a read after an answer, shows their revision. `lost`: the number of accepted writes
    that were lost. `in_sync_unjudged`: the number of writes of level IN_SYNC in runs that state no `min_in_sync`.
    `lags`: lag (ns, rounded) → the number of events with this lag. The lag of an event is the time from the return of
    the write to the arrival of the event.
    """

    operations: int = 0
    unknown: int = 0
    failed: int = 0
    runs: int = 0
    methods: dict[str, int] = field(default_factory=dict)  # How many keys each method decided.
    revision_gaps: int = 0
    properties: dict[str, Property] = field(default_factory=lambda: {name: Property() for name in _ORDER_PROPERTIES})
    violations: list[Violation] = field(default_factory=list)
    undecided: list[Undecided] = field(default_factory=list)
    watches: int = 0
    events: int = 0
    settled: int = 0
    lost: int = 0
    in_sync_unjudged: int = 0
    lags: Counter[int] = field(default_factory=Counter)
    engine: str = "local"
    seconds: float = 0.0

    @property
    def status(self) -> str:
        """The worst status of all properties."""
        statuses = {prop.status for prop in self.properties.values()}
        return next(status for status in (VIOLATION, UNDECIDED, LINEARIZABLE) if status in statuses)

    @property
    def exit_code(self) -> int:
        """The exit status of a command that prints this verdict."""
        return EXIT_CODES[self.status]

    def of(self, name: str) -> Property:
        """Return the counts of a property; it is added if it is missing."""
        return self.properties.setdefault(name, Property())

    def lag_ns(self, percent: int) -> int | None:
        """Return the lag of events at this percentile, by nearest rank; None if no lag is known."""
        left = -(-self.lags.total() * percent // 100)
        for lag, count in sorted(self.lags.items()):
            left -= count
            if left <= 0:
                return lag
        return None

    def record(self, found: Violation | Undecided, *, count: int = 1) -> None:
        """Count a finding, and keep it as an example if fewer than SHOWN_MAX findings of its property are kept.

        Violations and undecided questions are kept separately.
        """
        prop = self.of(found.property)
        if isinstance(found, Violation):
            prop.violated += count
            if sum(1 for v in self.violations if v.property == found.property) < SHOWN_MAX:
                self.violations.append(found)
        else:
            prop.undecided += count
            if sum(1 for u in self.undecided if u.property == found.property) < SHOWN_MAX:
                self.undecided.append(found)

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as a dict that can be written as JSON."""
        return {
            "status": self.status,
            "exit_code": self.exit_code,
            "engine": self.engine,
            "seconds": round(self.seconds, 3),
            "operations": self.operations,
            "unknown": self.unknown,
            "failed": self.failed,
            "runs": self.runs,
            "keys_by_method": dict(sorted(self.methods.items())),
            "revision_gaps": self.revision_gaps,
            "properties": {
                name: {"status": prop.status, "meaning": PROPERTIES[name], **asdict(prop)}
                for name, prop in self.properties.items()
            },
            **({"watches": self._watches()} if any(name in SERVICE_PROPERTIES for name in self.properties) else {}),
            **({"levels": self._levels()} if any(name in LEVEL_PROPERTIES for name in self.properties) else {}),
            "violations": [asdict(v) for v in self.violations],
            "undecided": [asdict(u) for u in self.undecided],
        }

    def _watches(self) -> dict[str, int | None]:
        lags = {f"lag_p{percent}_ns": self.lag_ns(percent) for percent in (50, 99)}
        return {"watches": self.watches, "events": self.events, "settled": self.settled, **lags}

    def _levels(self) -> dict[str, int]:
        return {"settled": self.settled, "lost": self.lost, "in_sync_unjudged": self.in_sync_unjudged}

    def to_json(self) -> str:
        """Return the verdict as JSON."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False)


def violation_from(fields: Mapping[str, Any]) -> Violation:
    """Return the violation that `asdict` converted to these fields.

    The fields may have been converted to JSON and back since.
    """
    return Violation(**{**fields, "operations": tuple(ShownOperation(**shown) for shown in fields["operations"])})

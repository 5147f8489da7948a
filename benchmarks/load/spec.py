"""The input of a load generator on stdin (`LoadSpec`) and its output on stdout (`LoadResult`), each one JSON object."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSpec:
    """The request for one load. `fill`: put every existing key once, instead of a measurement."""

    kind: str
    endpoints: list[str]  # The leader's endpoint comes first.
    work: str
    in_flight: int
    connections: int
    rate: int
    value_bytes: int
    existing_keys: int
    seed: int
    warmup_seconds: float
    seconds: float
    fill: bool = False
    acknowledge: int = 2  # The acknowledgement level of puts (`raft.Acknowledge`), by default MAJORITY.
    tls_ca: str | None = None  # The file of the authority, for a load over TLS.
    tls_cert: str | None = None  # The certificate of the load generator and its key, for a load over TLS.
    # The processes whose CPU time is read at the start and at the end of the measured window.
    pids: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> str:
        """Encode as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> LoadSpec:
        """Read what `to_json` wrote."""
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """The result of one load.

    `puts`, `errors` (the count of each kind of error), `unanswered` and the revisions are about the whole run,
    including the warm-up. All other fields are about the measured window. If no put has failed,
    `revision_after - revision_before == puts` proves that every put took place exactly once.
    """

    operations: int
    seconds: float
    puts: int
    revision_before: int
    revision_after: int
    latencies_ms: dict[str, float]
    cpu_seconds: dict[str, float]
    generator_cpu_seconds: float
    errors: dict[str, int]
    unanswered: int = 0

    def to_json(self) -> str:
        """Encode as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> LoadResult:
        """Read what `to_json` wrote."""
        return cls(**json.loads(text))

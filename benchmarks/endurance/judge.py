"""Checks the samples of an endurance run against bounds. Each check gives a finding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from benchmarks.measure.statistics import median
from harness.reports.percentile import percentile

MIB = 1 << 20

LOG_CACHE_BYTES = 64 * MIB
"""The payload that the log cache of a member holds (`raft.RaftConfig.log_cache_bytes_max`). The member's memory
legitimately grows until the cache is full.
"""

LOG_CACHE_COST = 2
"""Resident bytes per byte of payload in the log cache, for entries with a single put of a 16-byte key and a 128-byte
value (docs/internals/performance.md).
"""

REQUEST_BYTES = 2_048
"""The bound on resident bytes per open request: its frame, its entry, its result and its rows in five tables."""

LIGHT_SECONDS_MAX = 2.0
"""The bound on a wait of the light client under steady load. Up to 5,120 other requests may be served before its own
request, and the client retries after one second without an answer.
"""

SILENT_SHARE_MAX = 0.2
"""The greatest share of the samples in which a member may fail to answer `status`. If a member seldom reported its
term, an election could remain unseen.
"""

SAMPLES_SHARE_MIN = 0.8
"""The least share of the seconds of a phase that must have a sample, because seconds without samples prove nothing."""

CALM_SEEN_SHARE_MIN = 0.8
"""The least share of `Bounds.calm_seconds` that the samples must cover after a recovery. Fewer samples could not show
whether the latency stayed low.
"""

PHASES = ("steady", "overload", "recovery")


@dataclass(slots=True, kw_only=True)
class Sample:
    """The measurements of one second.

    `answers` counts all answers to the load; `refused` counts those among them that are Busy refusals. `errors` counts
    all other refusals and failures of all clients. A term or leader is None if the member did not answer. `light`: for
    each operation of the light client, when it began (seconds since the start of the run) and how long it took
    (seconds).
    """

    at: float  # Seconds since the first sample of the run.
    phase: str
    greedy: bool
    answers: int = 0
    refused: int = 0
    offered: int = 0  # Requests that were due, in an open loop.
    held_back: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    load_max_ms: float = 0.0
    rss: dict[str, int] = field(default_factory=dict)
    term: dict[str, int | None] = field(default_factory=dict)
    leader: dict[str, str | None] = field(default_factory=dict)
    light: list[tuple[float, float]] = field(default_factory=list)
    light_refused: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The bounds, and the facts about the run on which some bounds depend."""

    phase_seconds: dict[str, float]
    rss_growth_share: float = 0.2
    light_seconds_max: float = 2.0  # See LIGHT_SECONDS_MAX.
    recovery_seconds_max: float = 10.0
    # The bound on the ratio of the light client's p99 to its p99 in the steady phase without the greedy connection.
    recovery_ratio: float = 2.0
    calm_seconds: float = 5.0  # How long the latency must stay low to count as recovered.
    window_requests: int = 0  # The most open requests in the overload, over all connections.
    warm_bytes: int = 0  # The payload that was in the log before the first sample.
    put_bytes: float = 144.0  # The mean payload per answer to the load.

    def overload_seconds_max(self, per_second: float) -> float:
        """The bound on any wait in the overload.

        The bound is the light client's bound plus twice the time in which all open requests are answered at the
        measured rate.
        """
        return self.light_seconds_max + 2 * self.window_requests / max(per_second, 1.0)

    @property
    def overload_bytes_max(self) -> int:
        """The bytes by which a member's memory may grow in the overload."""
        return self.window_requests * REQUEST_BYTES


@dataclass(frozen=True, slots=True)
class Finding:
    """A property of the run, and whether it held."""

    name: str
    holds: bool
    words: str


def judge(samples: Sequence[Sample], bounds: Bounds) -> list[Finding]:
    """Return all findings. The run passes if every finding holds."""
    return [
        _sampled(samples, bounds),
        _no_election(samples),
        _no_error(samples),
        *_memory(samples, bounds),
        _light_client(samples, bounds),
        *_overload(samples, bounds),
        _recovery(samples, bounds),
    ]


def of_phase(samples: Iterable[Sample], phase: str) -> list[Sample]:
    """Return the samples of one phase."""
    return [sample for sample in samples if sample.phase == phase]


def thirds(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Split the samples into three consecutive parts of equal duration."""
    if not samples:
        return [[], [], []]
    begin, length = samples[0].at, samples[-1].at - samples[0].at
    parts: list[list[Sample]] = [[], [], []]
    for sample in samples:
        parts[min(int(3 * (sample.at - begin) / length), 2) if length else 2].append(sample)
    return parts


def waits(samples: Iterable[Sample]) -> list[float]:
    """Return how long each operation of the light client took, in seconds, in ascending order."""
    return sorted(seconds for sample in samples for _, seconds in sample.light)


def answers_per_second(samples: Sequence[Sample]) -> float:
    """Return the mean number of answers per second, without refusals and errors."""
    useful = sum(sample.answers - sample.refused - sum(sample.errors.values()) for sample in samples)
    return max(useful, 0) / len(samples) if samples else 0.0


def recovery_seconds(samples: Sequence[Sample], bounds: Bounds) -> float | None:
    """Return the seconds from the end of the overload until the light client's latency has recovered.

    The bound is `recovery_ratio` times the p99 in the steady phase without the greedy connection. The latency has
    recovered at a moment if the p99 of all waits in the `calm_seconds` after this moment is within the bound. A wait
    belongs to these seconds if it overlaps them. This function tries the end of the overload and, after it, the end of
    each wait above the bound. The end of the overload is the time of its last sample, which may be up to a second too
    early. Returns None if the latency has not recovered at any of these moments.
    """
    calm = waits(sample for sample in of_phase(samples, "steady") if not sample.greedy)
    overload = of_phase(samples, "overload")
    if not calm or not overload or not answers_per_second(of_phase(samples, "recovery")):
        return None  # Without a load, a low latency shows no recovery.
    bound, end = percentile(calm, 0.99) * bounds.recovery_ratio, overload[-1].at
    light = sorted(each for sample in samples for each in sample.light if sum(each) >= end)
    last = light[-1][0] if light else 0.0
    for back in sorted([end, *(sum(each) for each in light if each[1] > bound)]):
        until = back + bounds.calm_seconds
        window = sorted(seconds for moment, seconds in light if moment < until and moment + seconds > back)
        whole = last - back >= CALM_SEEN_SHARE_MIN * bounds.calm_seconds
        if whole and window and percentile(window, 0.99) <= bound:
            return back - end
    return None


def _sampled(samples: Sequence[Sample], bounds: Bounds) -> Finding:
    counts = {phase: len(of_phase(samples, phase)) for phase in PHASES}
    words = ", ".join(f"{phase} {counts[phase]} of {bounds.phase_seconds.get(phase, 0):.0f} s" for phase in PHASES)
    enough = all(counts[phase] >= SAMPLES_SHARE_MIN * bounds.phase_seconds.get(phase, 0) > 0 for phase in PHASES)
    at_work = all(answers_per_second(of_phase(samples, phase)) > 0 for phase in PHASES)
    return Finding("every second was looked at, and work was done", enough and at_work, words)


def _no_election(samples: Sequence[Sample]) -> Finding:
    name = "no election: one term, one leader"
    terms = {term for sample in samples for term in sample.term.values() if term is not None}
    leaders = {leader for sample in samples for leader in sample.leader.values() if leader is not None}
    silent = _silent_shares(samples)
    words = f"terms {sorted(terms)}, leaders {sorted(leaders)}"
    if silent:
        words += ", did not say: " + ", ".join(f"{member} {share:.0%}" for member, share in sorted(silent.items()))
    no_silence = bool(terms) and all(share <= SILENT_SHARE_MAX for share in silent.values())
    return Finding(name, len(terms) == len(leaders) == 1 and no_silence, words)


def _silent_shares(samples: Sequence[Sample]) -> dict[str, float]:
    members = {member for sample in samples for member in sample.term}
    silent = {member: sum(sample.term.get(member) is None for sample in samples) for member in members}
    return {member: count / len(samples) for member, count in silent.items() if count}


def _no_error(samples: Sequence[Sample]) -> Finding:
    errors: Counter[str] = Counter()
    for sample in samples:
        errors.update(sample.errors)
    refused = sum(sample.refused + sample.light_refused for sample in samples)
    words = ", ".join(f"{count:,} {name}" for name, count in errors.most_common()) or "none"
    return Finding("no error other than Busy", not errors, f"{words}; {refused:,} Busy")


def _memory(samples: Sequence[Sample], bounds: Bounds) -> list[Finding]:
    """Compare the median memory of each member in the last third of the steady phase with that in the second third."""
    first, second, last = thirds(of_phase(samples, "steady"))
    room = _log_cache_room(first, bounds)
    found = []
    for member in _members(samples):
        before, after = _median_rss(second, member), _median_rss(last, member)
        allowed = before * (1 + bounds.rss_growth_share) + room
        words = f"{before / MIB:.0f} → {after / MIB:.0f} MiB, allowed {allowed / MIB:.0f}"
        if room:
            words += f", of which {room / MIB:.0f} for a log cache that was not full after the first third"
        found.append(Finding(f"memory of {member} is flat", 0 < after <= allowed, words))
    return found


def _log_cache_room(until_now: Sequence[Sample], bounds: Bounds) -> float:
    """Return the bytes by which a member's memory may still grow because its log cache is not full yet."""
    written = bounds.warm_bytes + sum(sample.answers - sample.refused for sample in until_now) * bounds.put_bytes
    return LOG_CACHE_COST * max(LOG_CACHE_BYTES - written, 0)


def _light_client(samples: Sequence[Sample], bounds: Bounds) -> Finding:
    ordered = waits(of_phase(samples, "steady"))
    longest = ordered[-1] if ordered else 0.0
    words = f"{len(ordered):,} operations, the longest {longest:.3f} s, allowed {bounds.light_seconds_max:g} s"
    return Finding("the light client is served", bool(ordered) and longest <= bounds.light_seconds_max, words)


def _overload(samples: Sequence[Sample], bounds: Bounds) -> list[Finding]:
    """Check the waits and the memory in the overload and the recovery.

    The memory may exceed its peak in the last third of the steady phase, mainly by the cost of the open requests.
    """
    steady, overload = of_phase(samples, "steady"), of_phase(samples, "overload")
    after = [*overload, *of_phase(samples, "recovery")]
    allowed_seconds = bounds.overload_seconds_max(answers_per_second(steady))
    ordered = waits(after)
    longest = max([sample.load_max_ms / 1e3 for sample in after] + ordered[-1:], default=0.0)
    words = (
        f"longest wait {longest:.2f} s, allowed {allowed_seconds:.1f} s; of {sum(s.offered for s in after):,} offered "
        f"{sum(s.held_back for s in after):,} were held back, {sum(s.refused for s in overload):,} were Busy"
    )
    found = [Finding("overload: answers are late at most", bool(ordered) and longest <= allowed_seconds, words)]
    for member in _members(samples):
        before, peak = _peak_rss(thirds(steady)[2], member), _peak_rss(after, member)
        allowed = before * (1 + bounds.rss_growth_share) + bounds.overload_bytes_max + _log_cache_room(steady, bounds)
        words = f"{before / MIB:.0f} → {peak / MIB:.0f} MiB at the most, allowed {allowed / MIB:.0f}"
        found.append(Finding(f"overload: memory of {member} is bounded", 0 < peak <= allowed, words))
    return found


def _recovery(samples: Sequence[Sample], bounds: Bounds) -> Finding:
    seconds = recovery_seconds(samples, bounds)
    words = "not seen" if seconds is None else f"{seconds:.1f} s after it"
    words += f", allowed {bounds.recovery_seconds_max:g} s"
    holds = seconds is not None and seconds <= bounds.recovery_seconds_max
    return Finding("after the overload the light client's p99 is back", holds, words)


def _members(samples: Sequence[Sample]) -> list[str]:
    return sorted({member for sample in samples for member in sample.rss})


def _median_rss(samples: Sequence[Sample], member: str) -> float:
    return _rss(samples, member, median)


def _peak_rss(samples: Sequence[Sample], member: str) -> float:
    return _rss(samples, member, max)


def _rss(samples: Sequence[Sample], member: str, of: Callable[[list[float]], float]) -> float:
    known = [float(sample.rss[member]) for sample in samples if member in sample.rss]
    return of(known) if known else 0.0

"""The judgement of the samples of an endurance run: bounds, each with its reason, and a finding for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from benchmarks.measure.statistics import median
from harness.reports.percentile import percentile

MIB = 1 << 20

LOG_CACHE_BYTES = 64 * MIB
"""Of payload; `raft.RaftConfig.log_cache_bytes_max`. Until it is full a member's memory grows, as it should."""

LOG_CACHE_COST = 2
"""Resident bytes per byte of payload in it, for entries of single puts of 16 + 128 bytes
(docs/internals/performance.md).
"""

REQUEST_BYTES = 2_048
"""Resident bytes per open request at most: its frame, its entry, its result and its place in five tables."""

LIGHT_SECONDS_MAX = 2.0
"""In steady load: 5,120 requests may be open before it, and it asks again after a second of silence."""

SILENT_SHARE_MAX = 0.2
"""Of a member's samples: one that seldom says its term could hide an election."""

SAMPLES_SHARE_MIN = 0.8
"""Of the seconds of a phase: a sampler that did not run saw nothing, and proves nothing."""

CALM_SEEN_SHARE_MIN = 0.8
"""Of the calm seconds: the run must go on for as long, or nobody knows that it stayed calm."""

PHASES = ("steady", "overload", "recovery")


@dataclass(slots=True, kw_only=True)
class Sample:
    """One second. `light`: of each operation of the light client when it began (s), and how long it took (s).

    `answers` are those of the load, refusals for a bound (`refused`) included; `errors` are all other refusals and
    failures, whoever got them. None for what a member did not tell.
    """

    at: float  # Seconds since the first sample of the run.
    phase: str
    greedy: bool
    answers: int = 0
    refused: int = 0
    offered: int = 0  # In an open loop.
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
    """The bounds of the judgement."""

    phase_seconds: dict[str, float]
    rss_growth_share: float = 0.2
    light_seconds_max: float = (
        2.0  # 5,120 requests are open before it at the most, and the client asks again after 1 s.
    )
    recovery_seconds_max: float = 10.0
    recovery_ratio: float = 2.0  # Relative to the p99 of the light client without the greedy one.
    calm_seconds: float = 5.0  # How long it must be back to be back.
    window_requests: int = 0  # Open at most in the overload, over all connections.
    warm_bytes: int = 0  # Payload in the log before the first sample.
    put_bytes: float = 144.0  # Payload per answer of the load, on average.

    def overload_seconds_max(self, per_second: float) -> float:
        """Twice what all windows together take at the measured rate, and the light client's own bound."""
        return self.light_seconds_max + 2 * self.window_requests / max(per_second, 1.0)

    @property
    def overload_bytes_max(self) -> int:
        """What a member may add in the overload."""
        return self.window_requests * REQUEST_BYTES


@dataclass(frozen=True, slots=True)
class Finding:
    """A property of the run, and whether it held."""

    name: str
    holds: bool
    words: str


def judge(samples: Sequence[Sample], bounds: Bounds) -> list[Finding]:
    """All findings. The run is good if every one holds."""
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
    """The samples of one phase."""
    return [sample for sample in samples if sample.phase == phase]


def thirds(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Three parts of equal time, the earlier ones first."""
    if not samples:
        return [[], [], []]
    begin, length = samples[0].at, samples[-1].at - samples[0].at
    parts: list[list[Sample]] = [[], [], []]
    for sample in samples:
        parts[min(int(3 * (sample.at - begin) / length), 2) if length else 2].append(sample)
    return parts


def waits(samples: Iterable[Sample]) -> list[float]:
    """How long each operation of the light client took, in seconds, the shortest first."""
    return sorted(seconds for sample in samples for _, seconds in sample.light)


def answers_per_second(samples: Sequence[Sample]) -> float:
    """The mean; what was refused, for whatever reason, is no answer here."""
    useful = sum(sample.answers - sample.refused - sum(sample.errors.values()) for sample in samples)
    return max(useful, 0) / len(samples) if samples else 0.0


def recovery_seconds(samples: Sequence[Sample], bounds: Bounds) -> float | None:
    """From the end of the overload until the light client's waits are, and stay, what they were; None if never.

    "What they were" is `recovery_ratio` times the p99 of the steady phase without the greedy connection; back they are
    at the end of a wait above that, if the p99 of those under way in the `calm_seconds` that follow is not. The end of
    the overload is its last sample: up to a second early.
    """
    calm = waits(sample for sample in of_phase(samples, "steady") if not sample.greedy)
    overload = of_phase(samples, "overload")
    if not calm or not overload or not answers_per_second(of_phase(samples, "recovery")):
        return None  # Without load it is no recovery.
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
    """Of each member: median of the last third of the steady phase against that of the second."""
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
    """Bytes that a member may still grow by because its log cache is not full yet."""
    written = bounds.warm_bytes + sum(sample.answers - sample.refused for sample in until_now) * bounds.put_bytes
    return LOG_CACHE_COST * max(LOG_CACHE_BYTES - written, 0)


def _light_client(samples: Sequence[Sample], bounds: Bounds) -> Finding:
    ordered = waits(of_phase(samples, "steady"))
    longest = ordered[-1] if ordered else 0.0
    words = f"{len(ordered):,} operations, the longest {longest:.3f} s, allowed {bounds.light_seconds_max:g} s"
    return Finding("the light client is served", bool(ordered) and longest <= bounds.light_seconds_max, words)


def _overload(samples: Sequence[Sample], bounds: Bounds) -> list[Finding]:
    """Memory is allowed what the open requests cost, above the peak of the last third before."""
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

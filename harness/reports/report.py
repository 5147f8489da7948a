"""Computes the summary of a run from its files alone, so that the report of any recorded run can be repeated."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness.nemesis.expected_exits import STOPPED_AS_ASKED
from harness.nemesis.schedule import MEMBER_KINDS, VICTIMLESS_KINDS
from harness.recording.clock import NS_PER_SECOND
from harness.recording.history import WRITES, read_about, read_events, read_rows
from harness.recording.staleness_check import older_than_they_say
from harness.reports.percentile import percentile


@dataclass(frozen=True, slots=True, kw_only=True)
class Unavailability:
    """The distribution of `FaultEffect.longest_silence_seconds` over the faults of one kind, in ms.

    Percentiles are nearest ranks. `hit`: `leader` if the leader was among the victims, else `others`.
    """

    fault: str
    hit: str
    count: int
    median_ms: float
    p90_ms: float
    worst_ms: float


def longest_silence_ns(acknowledged: Sequence[int], since: int, until: int) -> int:
    """Return the longest time without an acknowledgement in the window from `since` to `until`.

    `acknowledged`: the times of acknowledgements, ascending. The start and the end of the window count as
    acknowledgements.
    """
    assert since <= until, (since, until)
    inside = acknowledged[bisect_left(acknowledged, since) : bisect_left(acknowledged, until)]
    moments = [since, *inside, until]
    return max(after - before for before, after in pairwise(moments))


def distributions(silences: Iterable[tuple[str, bool, float]]) -> tuple[Unavailability, ...]:
    """Group `silences` by the kind of the fault and by whether the fault hit the leader.

    Returns the distribution of each group.

    `silences`: for each fault, (kind of the fault, whether the fault hit the leader, seconds without an acknowledged
    write).
    """
    groups: dict[tuple[str, str], list[float]] = {}
    for kind, hit_leader, seconds in silences:
        groups.setdefault((kind, "leader" if hit_leader else "others"), []).append(seconds * 1000)
    return tuple(
        Unavailability(
            fault=kind,
            hit=hit,
            count=len(values),
            median_ms=round(percentile(sorted(values), 0.5), 1),
            p90_ms=round(percentile(sorted(values), 0.9), 1),
            worst_ms=round(max(values), 1),
        )
        for (kind, hit), values in sorted(groups.items())
    )


STATUSES = ("ok", "fail", "unknown")
_STOP_FIELDS = frozenset({"at_ns", "kind", "number", "fault", "victims"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """The latencies of operations that ended `ok`, in milliseconds. Percentiles are nearest ranks."""

    count: int
    p50_ms: float
    p99_ms: float
    worst_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultEffect:
    """One fault, and for how long no write succeeded after it.

    `unavailable_seconds`: the time from the start of the fault to the first acknowledgement of a write that was
    *called* after this start; None without such a write. Writes that are in flight at the start do not count, because
    the last message of a killed leader may acknowledge such a write. `longest_silence_seconds`: the longest time
    without an acknowledged write between this fault and the next fault; for a membership change, until the next
    membership change. `outcome`: facts that were known only at the end of the fault. `skipped`: the reason why the
    fault was not carried out; None if the fault was carried out. A skipped fault has None for both times.
    """

    number: int
    kind: str
    target: str
    direction: str | None
    victims: tuple[str, ...]
    at_seconds: float
    lasted_seconds: float | None
    unavailable_seconds: float | None
    longest_silence_seconds: float | None
    hit_leader: bool
    skipped: str | None
    outcome: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The summary of one run."""

    run_id: str
    seed: int | None
    folder: str
    nodes: int | None
    clients: int | None
    keys: int | None
    load_seconds: float
    operations: int
    acknowledged: int  # The operations of the load that ended `ok`, without the final reads.
    by_status: dict[str, int]
    by_operation: dict[str, dict[str, int]]
    errors: dict[str, int]
    operations_per_second: float
    # `reads` has the linearizable reads, and `reads_by_way` all other reads, by the consistency of their answers.
    reads: Latency | None
    reads_by_way: dict[str, Latency]
    # The op_ids of bounded reads that were older than their stated age; a sound run has no such reads.
    older_than_they_say: tuple[int, ...]
    writes: Latency | None
    longest_write_gap_seconds: float | None
    leader_changes: int
    kills: int
    faults_planned: int
    faults_carried_out: int
    faults_skipped: int  # Excludes planned faults that had not begun by the end of the load.
    faults: tuple[FaultEffect, ...]
    unavailability: tuple[Unavailability, ...]
    unavailable_faults: dict[str, str]
    founders_left: tuple[str, ...]
    healed: bool
    final_reads: int
    state_hashes_agree: bool | None
    state_hashes: dict[str, str]
    state_hash_index: int | None
    # The exit code of each member after the request to stop at the end of the run, by node id. None: not recorded.
    exit_codes: dict[str, int] | None
    finished: bool
    # The number of writes of the load with each status, for each acknowledgement level. Empty if the run had no levels.
    writes_by_level: dict[str, dict[str, int]] = field(default_factory=dict)
    accepted: int = 0  # The number of writes that were answered when only the leader had them.
    # The outcomes of the accepted writes, as later answers reported them.
    outcomes: dict[str, int] = field(default_factory=dict)
    under_replicated: int = 0

    @property
    def sound(self) -> bool:
        """True if the recording is complete, the cluster recovered, every key was read, and all states were equal.

        A sound run also has an acknowledged operation of the load, and all its membership changes were made. No member
        ended with an exit code that is not allowed, and no bounded read was older than its stated age.
        """
        ended_well = self.finished and self.healed and self.every_key_read and self.state_hashes_agree is True
        found = self.changes_not_made or self.findings or self.older_than_they_say
        return ended_well and self.exit_codes is not None and self.acknowledged > 0 and not found

    @property
    def every_key_read(self) -> bool:
        """True if the final read of every key was answered."""
        return self.keys is not None and self.final_reads == self.keys

    @property
    def changes_not_made(self) -> tuple[str, ...]:
        """The membership changes that could not be made, with the reasons."""
        failed = (fault for fault in self.faults if "failed" in fault.outcome)
        return tuple(f"fault {fault.number}, {fault.kind}: {fault.outcome['failed']}" for fault in failed)

    @property
    def findings(self) -> tuple[str, ...]:
        """The exit codes that are not allowed, of members that ended under a fault or at the end of the run."""
        found = (fault for fault in self.faults if "finding" in fault.outcome)
        words = [f"fault {fault.number}, {fault.kind}: {fault.outcome['finding']}" for fault in found]
        others = {node_id: code for node_id, code in (self.exit_codes or {}).items() if code != STOPPED_AS_ASKED}
        if others:
            words.append(f"asked to stop at the end, members ended so: {others}")
        return tuple(words)

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "sound": self.sound}


def report_on(folder: Path) -> Report:
    """Read a run and return its report. Raises BadInput if `folder` has no run."""
    about = read_about(folder)
    return summarize(about, list(read_rows(folder)), read_events(folder), folder)


def summarize(
    about: dict[str, Any], rows: Sequence[dict[str, Any]], events: Sequence[dict[str, Any]], folder: Path
) -> Report:
    """Compute the report from the contents of the files. `events` are in order of time."""
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        by_kind.setdefault(event["kind"], []).append(event)
    begun = _first_at(by_kind, "load_started")
    loaded = [row for row in rows if not _is_final(row)]
    ended = _first_at(by_kind, "load_ended") or max((row.get("return_ns") or 0 for row in loaded), default=0)
    load_seconds = max(0, ended - begun) / NS_PER_SECOND if begun is not None else 0.0
    acknowledged = sorted(
        (row["return_ns"], row["call_ns"]) for row in loaded if row["op"] in WRITES and row["status"] == "ok"
    )
    over = (begun or 0) + round(about["seconds"] * NS_PER_SECOND) if about.get("seconds") else ended
    faults = _effects(by_kind, acknowledged, begun or 0, over)
    hashes = by_kind.get("state_hashes", [{}])[-1]
    by_way = _by_way(loaded)
    return Report(
        run_id=str(about["run_id"]),
        seed=about.get("seed"),
        folder=str(folder),
        nodes=about.get("nodes"),
        clients=about.get("clients"),
        keys=about.get("keys"),
        load_seconds=round(load_seconds, 3),
        operations=len(rows),
        acknowledged=sum(1 for row in loaded if row["status"] == "ok"),
        by_status=_count(row["status"] for row in rows),
        by_operation={
            op: _count(row["status"] for row in rows if row["op"] == op) for op in sorted({row["op"] for row in rows})
        },
        errors=dict(Counter(row["error"] for row in rows if row.get("error")).most_common()),
        operations_per_second=round(len(loaded) / load_seconds, 1) if load_seconds else 0.0,
        reads=by_way.pop("linearizable", None),
        reads_by_way=by_way,
        older_than_they_say=older_than_they_say(rows),
        writes=_latency(row for row in loaded if row["op"] in WRITES),
        longest_write_gap_seconds=_longest_gap([returned for returned, _ in acknowledged]),
        # The first of these events is the first election, which does not count as a change.
        leader_changes=max(0, len(by_kind.get("leader_changed", ())) - 1),
        kills=sum(len(fault.victims) for fault in faults if fault.kind == "kill"),
        faults_planned=len(about.get("schedule") or faults),
        faults_carried_out=sum(1 for fault in faults if fault.skipped is None),
        faults_skipped=sum(1 for fault in faults if fault.skipped is not None),
        faults=faults,
        unavailability=distributions(
            (fault.kind, fault.hit_leader, fault.longest_silence_seconds)
            for fault in faults
            if fault.longest_silence_seconds is not None
        ),
        unavailable_faults=about.get("unavailable_faults", {}),
        founders_left=_members_left(by_kind, faults),
        healed=bool(by_kind.get("healed")),
        final_reads=sum(1 for row in rows if _is_final(row) and row["status"] == "ok"),
        state_hashes_agree=hashes.get("agree"),
        state_hashes=hashes.get("hashes", {}),
        state_hash_index=hashes.get("index"),
        exit_codes=by_kind.get("members_stopped", [{}])[-1].get("exit_codes"),
        finished=bool(about.get("finished")),
        writes_by_level=_by_level(loaded) if about.get("levels") else {},
        accepted=sum(1 for row in rows if row.get("accepted_index")),
        outcomes=_outcomes(rows),
        under_replicated=sum(1 for row in rows if row.get("under_replicated")),
    )


def _by_level(loaded: Iterable[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Return the number of writes of the load by level and status."""
    writes = [(row.get("acknowledge", "majority"), row["status"]) for row in loaded if row["op"] in WRITES]
    return {level: _count(status for mine, status in writes if mine == level) for level in sorted(dict(writes))}


def _outcomes(rows: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Return, by outcome, how many entries had this outcome in the last answer about them."""
    last: dict[str, str] = {}
    for row in rows:
        if row["op"] == "outcome" and row["status"] == "ok":
            last[row["request"]] = json.loads(row["output"]["answer"])["outcome"]
    return dict(Counter(last.values()).most_common())


def _effects(
    by_kind: dict[str, list[dict[str, Any]]], acknowledged: Sequence[tuple[int, int]], begun: int, over: int
) -> tuple[FaultEffect, ...]:
    """Compute the effect of each fault. `over`: the end of the load, up to which silences are measured."""
    started = by_kind.get("fault_started", [])
    stops = {event["number"]: event for event in by_kind.get("fault_stopped", ())}
    why_skipped = [_why_skipped(event, stops.get(event["number"], {})) for event in started]
    effects = []
    for place, event in enumerate(started):
        later = zip(started[place + 1 :], why_skipped[place + 1 :], strict=True)
        lane = [each["started_ns"] for each, why in later if why is None and _changes(each) == _changes(event)]
        window_end = max(event["started_ns"], min(lane[0] if lane else over, over))
        stop = stops.get(event["number"], {})
        effects.append(_effect(event, stop, why_skipped[place], acknowledged, begun, window_end))
    return tuple(effects)


def _why_skipped(event: dict[str, Any], stop: dict[str, Any]) -> str | None:
    """Return the reason why a fault was skipped; None if the fault was carried out."""
    if "skipped" in stop:
        return str(stop["skipped"])
    if event["victims"] or event["fault"] in VICTIMLESS_KINDS:
        return None
    return "every member was already hit by another fault"


def _changes(event: dict[str, Any]) -> bool:
    """True if the fault is a membership change. Membership changes have a separate lane."""
    return event["fault"] in MEMBER_KINDS


def _effect(
    event: dict[str, Any],
    stop: dict[str, Any],
    why_skipped: str | None,
    acknowledged: Sequence[tuple[int, int]],
    begun: int,
    window_end: int,
) -> FaultEffect:
    started, stopped = event["started_ns"], stop.get("at_ns")
    next_write = next((returned for returned, called in acknowledged if called >= started), None)
    silence = longest_silence_ns([returned for returned, _ in acknowledged], started, window_end)
    was_carried_out = why_skipped is None
    return FaultEffect(
        number=event["number"],
        kind=event["fault"],
        target=event["target"],
        direction=event.get("direction"),
        victims=tuple(event["victims"]),
        hit_leader=event.get("leader_id") is not None and event["leader_id"] in event["victims"],
        at_seconds=_seconds(started - begun),
        lasted_seconds=None if stopped is None else _seconds(stopped - started),
        unavailable_seconds=_seconds(next_write - started) if was_carried_out and next_write is not None else None,
        longest_silence_seconds=_seconds(silence) if was_carried_out else None,
        skipped=why_skipped,
        outcome={name: value for name, value in stop.items() if name not in _STOP_FIELDS},
    )


def _members_left(by_kind: dict[str, list[dict[str, Any]]], faults: Iterable[FaultEffect]) -> tuple[str, ...]:
    """Return the founding members that were never removed or replaced."""
    founders = {node_id for event in by_kind.get("cluster_ready", ()) for node_id in event["members"]}
    return tuple(sorted(founders - {fault.outcome.get("removed") for fault in faults}))


def _by_way(loaded: Iterable[dict[str, Any]]) -> dict[str, Latency]:
    """Return the latencies of reads, grouped by the consistency of the answer."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in loaded:
        if row["op"] not in WRITES:
            rows.setdefault(row.get("consistency") or "linearizable", []).append(row)
    found = {way: _latency(rows[way]) for way in sorted(rows)}
    return {way: latency for way, latency in found.items() if latency is not None}


def _latency(rows: Iterable[dict[str, Any]]) -> Latency | None:
    ordered = sorted((row["return_ns"] - row["call_ns"]) / 1e6 for row in rows if row["status"] == "ok")
    if not ordered:
        return None
    return Latency(
        count=len(ordered),
        p50_ms=round(percentile(ordered, 0.5), 3),
        p99_ms=round(percentile(ordered, 0.99), 3),
        worst_ms=round(ordered[-1], 3),
    )


def _longest_gap(returned: Sequence[int]) -> float | None:
    gaps = [after - before for before, after in pairwise(returned)]
    return _seconds(max(gaps)) if gaps else None


def _count(statuses: Iterable[str]) -> dict[str, int]:
    counted = Counter(statuses)
    return {status: counted[status] for status in STATUSES}


def _first_at(by_kind: dict[str, list[dict[str, Any]]], kind: str) -> int | None:
    return by_kind[kind][0]["at_ns"] if kind in by_kind else None


def _is_final(row: dict[str, Any]) -> bool:
    """True for one of the final reads, which are not part of the load."""
    return str(row["client"]).startswith("final")


def _seconds(ns: int) -> float:
    return round(ns / NS_PER_SECOND, 3)

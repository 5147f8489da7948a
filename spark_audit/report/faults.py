"""Reads which faults were injected into a run, and when: from its events, or else from the schedule in `run.json`.

Faults are only drawn on the page, so a fault that cannot be read is left out, and is not an error of the audit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_audit.report.material import FaultWindow

FAULTS_MAX = 200  # At most this many fault windows are drawn. A run of several days may have more.


@dataclass(frozen=True, slots=True)
class RunAbout:
    """Information about a run besides its rows.

    `compared`: the clocks with an error bound, which share one axis. `schedule`: the planned faults in run.json.
    `clock_error_ns`: the greatest error between two of these clocks.
    """

    compared: frozenset[str] = frozenset()
    folder: Path | None = None
    schedule: object = None
    clock_error_ns: int = 0

    @classmethod
    def of(cls, folder: Path, header: Mapping[str, Any]) -> RunAbout:
        """Return the information in run.json. `header`: its content, from `read_run_file`."""
        clocks = header.get("clocks") or ()
        bounds = {
            clock["clock_id"]: clock["error_bound_ns"] for clock in clocks if clock.get("error_bound_ns") is not None
        }
        error_ns = sum(sorted(bounds.values())[-2:]) if len(bounds) > 1 else 0
        return cls(frozenset(bounds), folder, header.get("schedule"), error_ns)

    def axis_clock(self, clock: str) -> str:
        """Return the clock on whose axis the stamps of this clock are drawn; "" for the common axis."""
        return "" if clock in self.compared else clock

    def faults(self, first_call_ns: int) -> tuple[FaultWindow, ...]:
        """Return the fault windows, sorted by time. The times of a schedule count from the first call of the run."""
        carried_out = list(_carried_out(self.folder / "events.jsonl")) if self.folder is not None else []
        windows = carried_out or list(_planned(self.schedule, first_call_ns))
        return tuple(sorted(windows, key=lambda window: (window.start_ns, window.words))[:FAULTS_MAX])


def _carried_out(path: Path) -> Iterator[FaultWindow]:
    """Yield a window for each event `fault_started`, up to the event `fault_stopped` of the same number."""
    open_: dict[Any, tuple[int, str]] = {}
    for event in _events(path):
        number, at = event.get("number"), event.get("at_ns")
        if not isinstance(number, int) or not isinstance(at, int):
            continue
        if event.get("kind") == "fault_started" and len(open_) < FAULTS_MAX:
            started = event.get("started_ns")
            open_[number] = (started if isinstance(started, int) else at, _words(event, event.get("fault")))
        elif event.get("kind") == "fault_stopped" and number in open_:
            start, words = open_.pop(number)
            yield FaultWindow(start, max(start, at), words)
    for start, words in open_.values():
        yield FaultWindow(start, None, words)


def _events(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if '"fault_st' not in line:  # Most lines are other events, such as leader changes.
                    continue
                try:
                    event = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(event, dict):
                    yield event
    except OSError:
        return


def _planned(schedule: object, first_call_ns: int) -> Iterator[FaultWindow]:
    for fault in schedule if isinstance(schedule, list) else ():
        if not isinstance(fault, dict):
            continue
        start_ns, lasts_ns = (_nanoseconds(fault.get(name)) for name in ("start_seconds", "duration_seconds"))
        if start_ns is not None and lasts_ns is not None:
            begun = first_call_ns + start_ns
            yield FaultWindow(begun, begun + lasts_ns, f"{_words(fault, fault.get('kind'))} (as planned)")


def _words(fault: Mapping[str, Any], kind: object) -> str:
    way = {"in": ", frames to it lost", "out": ", frames from it lost", "slow": ", frames late"}
    direction = fault.get("direction")
    victims = fault.get("victims")
    whom = f": {', '.join(map(str, victims))}" if isinstance(victims, list) else ""
    return f"{kind} {fault.get('target', '')}{way.get(direction, '') if isinstance(direction, str) else ''}{whom}"


def _nanoseconds(seconds: object) -> int | None:
    """Return the time in ns; None if it is not a number, is NaN or negative, or is more than 30 years."""
    if not isinstance(seconds, int | float) or not 0 <= seconds < 1e9:
        return None
    return int(seconds * 1e9)

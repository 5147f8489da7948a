"""Sampling and bounds: a key is recorded completely, or not at all."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from spark_audit.history.recorded_files import mark_name
from spark_audit.record import Recorder, RecordingFull
from spark_audit.record.text import place_of
from tests.spark_audit.record.helpers import checked, rows_of, started, verdict_of

KEYS = [f"key {number}" for number in range(100)]


def _use_all_keys(recorder: Recorder, rounds: int) -> None:
    for turn in range(rounds):
        for key in KEYS:
            with recorder.put("writer", key, f"{turn}") as put:
                put.ok()
            with recorder.get("reader", key) as get:
                get.ok(f"{turn}")


def test_a_sampled_key_is_whole_and_the_same_in_every_process(tmp_path: Path) -> None:
    with Recorder(tmp_path / "one", sample=0.25) as recorder:
        _use_all_keys(recorder, 3)
    with Recorder(tmp_path / "two", sample=0.25) as recorder:
        _use_all_keys(recorder, 2)

    counts = [Counter(row["key"] for row in rows_of(tmp_path / name)) for name in ("one", "two")]

    assert counts[0].keys() == counts[1].keys()
    assert 10 < len(counts[0]) < 45
    assert set(counts[0].values()) == {6}
    assert checked(tmp_path).exit_code == 0


def test_the_place_of_a_key_never_changes() -> None:
    """Recordings of different versions may be sampled in the same way, so this number is part of the format."""
    assert place_of(b"key") == 14878992315609337077


def test_at_a_bound_of_bytes_parts_of_the_keys_are_dropped_whole(tmp_path: Path) -> None:
    with Recorder(tmp_path, bytes_max=100_000, at_bound="drop") as recorder:
        _use_all_keys(recorder, 10)

    counts = Counter(row["key"] for row in rows_of(tmp_path))
    (state_path,) = (tmp_path / "recorders").glob("*.json")
    state = json.loads(state_path.read_text())

    assert 0 < len(counts) < len(KEYS)
    assert set(counts.values()) == {20}
    assert sum(path.stat().st_size for path in (tmp_path / "ops").iterdir()) < 110_000
    assert state["operations_recorded"] == sum(counts.values())
    assert state["operations_recorded"] + state["operations_not_recorded"] == 2000
    assert state["dropped_parts"]
    result = checked(tmp_path)
    assert result.exit_code == 0
    assert f"dropped {len(state['dropped_parts'])} of 16 parts" in result.stderr


OTHER = """
import sys
from spark_audit.record import Recorder
with Recorder(sys.argv[1], at_bound="drop", rotate_bytes=int(sys.argv[2])) as recorder:
    for turn in range(10):
        for number in range(100):
            with recorder.put("writer", f"key {number}", f"other {turn}") as put:
                put.ok()
        print("round", flush=True)
        sys.stdin.readline()
"""


@pytest.mark.parametrize("rotate_bytes", [4000, 10**9])
def test_a_part_is_dropped_in_all_processes(tmp_path: Path, rotate_bytes: int) -> None:
    """The other process has no bound. It learns of the drop when it begins a file, or never, if it begins none."""
    other = started(OTHER, tmp_path, str(rotate_bytes))
    assert other.stdin is not None
    assert other.stdout is not None
    with Recorder(tmp_path, bytes_max=150_000, at_bound="drop") as recorder:
        for _ in range(10):
            assert other.stdout.readline() == "round\n"
            _use_all_keys(recorder, 1)
            other.stdin.write("\n")
            other.stdin.flush()
    other.communicate(timeout=60)

    counts = Counter(row["key"] for row in rows_of(tmp_path))

    assert 0 < len(counts) < len(KEYS)
    assert set(counts.values()) == {30}
    assert verdict_of(tmp_path)["status"] == "linearizable"


def test_the_files_of_a_dropped_part_are_not_judged_even_if_a_kill_left_them(tmp_path: Path) -> None:
    with Recorder(tmp_path, at_bound="drop") as recorder:
        _use_all_keys(recorder, 1)
    path = min((tmp_path / "ops").iterdir())
    mark = tmp_path / "ops" / mark_name(int(path.name.partition("-")[2][:2]))
    before = verdict_of(tmp_path)["operations"]

    mark.touch()

    assert verdict_of(tmp_path)["operations"] == before - path.read_bytes().count(b"\n")


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.ns = 5_000_000_000

    def __call__(self) -> int:
        return self.ns


def test_at_a_bound_of_the_rate_keys_are_dropped_until_the_rate_fits(tmp_path: Path) -> None:
    """200 operations per second are too many. The keys that stay have at most 50 operations per second together."""
    clock = Clock()
    with Recorder(tmp_path, rate_max=50, at_bound="drop", monotonic_ns=clock) as recorder:
        for _ in range(10):
            _use_all_keys(recorder, 1)
            clock.ns += 1_000_000_000

    counts = Counter(row["key"] for row in rows_of(tmp_path))
    assert set(counts.values()) == {20}
    assert 0 < len(counts) <= 25
    assert verdict_of(tmp_path)["status"] == "linearizable"


def test_at_a_bound_of_the_rate_an_error_lasts_until_the_second_is_over(tmp_path: Path) -> None:
    clock = Clock()
    with Recorder(tmp_path, rate_max=3, monotonic_ns=clock) as recorder:
        for step_ns in (1, 1_000_000_000, -2_000_000_000):  # A clock that steps back begins a new second, too.
            clock.ns += step_ns
            for _ in range(3):
                recorder.get("client", "key").ok(None)
            clock.ns += 999_999_999
            with pytest.raises(RecordingFull, match="rate_max=3 operations per second; raise the bound"):
                recorder.get("client", "key")
            clock.ns -= 999_999_999

    assert len(rows_of(tmp_path)) == 9


def test_at_a_bound_of_bytes_an_error_stops_the_client_before_the_operation(tmp_path: Path) -> None:
    with Recorder(tmp_path, bytes_max=50_000) as recorder:
        with pytest.raises(RecordingFull, match=r"put of 'key .* was not begun: bytes_max=.*raise the bound"):
            _use_all_keys(recorder, 100)
        with pytest.raises(RecordingFull):
            recorder.get("client", "key")

    assert checked(tmp_path).exit_code == 0

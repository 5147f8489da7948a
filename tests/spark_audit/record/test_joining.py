"""Files of several processes and folders are judged as one run only if their recorders agree, and lack no rows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from spark_audit.cli import cli
from spark_audit.record import Recorder, RecordingFull, WrongFolder, folder, recorder
from tests.spark_audit.record.helpers import checked, rows_of, verdict_of


def _record(place: Path, value: str, **options: Any) -> None:
    with Recorder(place, run_id="run", **options) as opened:
        opened.put("client", f"key of {value}", value).ok()


def _join(into: Path, *others: Path) -> Path:
    """Collect the files of several folders, as the guide says; the header is that of the first folder."""
    for other in others:
        for name in ("ops", "recorders"):
            (into / name).mkdir(parents=True, exist_ok=True)
            for path in (other / name).iterdir():
                assert path.name == "lock" or not (into / name / path.name).exists()
                shutil.copy(path, into / name)
    shutil.copy(others[0] / "run.json", into)
    return into


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"values": "plain"}, "recorded with {'values': 'plain'}, not {'values': 'hash'} as the others"),
        ({"sample": 0.5}, "recorded with {'sample': 0.5}, not {'sample': 1.0}"),
        ({"at_bound": "drop"}, "recorded with {'at_bound': 'drop'}, not {'at_bound': 'error'}"),
        ({"secret": b"other"}, "recorded with {'secret': '"),
        ({"error_bound_ns": 2000}, "recorded with error_bound_ns=2000, but clocks of run.json has None for boot-"),
    ],
)
def test_joined_files_with_other_settings_are_refused(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    _record(tmp_path / "one", "a")
    _record(tmp_path / "two", "b", **options)

    result = checked(_join(tmp_path / "all", tmp_path / "one", tmp_path / "two"))

    assert result.exit_code == 2
    assert words in result.output.replace("\n", " ")
    followed = CliRunner().invoke(cli, ["follow", str(tmp_path / "state.json"), str(tmp_path / "all")])
    assert followed.exit_code == 2
    assert words in followed.output.replace("\n", " ")


def test_joined_files_of_one_clock_with_two_offsets_are_refused(tmp_path: Path) -> None:
    """Each folder has an offset of its own, so the stamps of one machine in two folders may differ by a step."""
    for name in ("one", "two"):
        _record(tmp_path / name, name, error_bound_ns=1000)
    offsets = [json.loads((tmp_path / n / "run.json").read_text())["clocks"][0]["offset_ns"] for n in ("one", "two")]
    assert offsets[0] != offsets[1]

    result = checked(_join(tmp_path / "all", tmp_path / "one", tmp_path / "two"))

    assert result.exit_code == 2
    assert f"recorded with offset_ns={offsets[1]}, but clocks of run.json has {offsets[0]}" in result.output


def test_a_bounded_clock_that_the_header_does_not_list_is_named(tmp_path: Path) -> None:
    _record(tmp_path, "a", error_bound_ns=1000)
    header = json.loads((tmp_path / "run.json").read_text())
    (clock,) = header["clocks"]
    (tmp_path / "run.json").write_text(json.dumps({**header, "clocks": []}))

    result = checked(tmp_path)

    assert result.exit_code == 2
    assert f"lacks its clock for {clock['clock_id']}: add {json.dumps(clock)}" in result.output


@pytest.mark.parametrize("bounds", [(None, 1000), (1000, None)])
def test_a_machine_with_a_bound_does_not_join_one_without(tmp_path: Path, bounds: tuple[int | None, ...]) -> None:
    _record(tmp_path, "a", error_bound_ns=bounds[0])
    header = json.loads((tmp_path / "run.json").read_text())
    header["clocks"][0]["clock_id"] = "boot-of another machine"
    (tmp_path / "run.json").write_text(json.dumps(header))

    words = f"boot-of another machine has error_bound_ns={bounds[0]}, but this recorder on boot-.* has {bounds[1]}"
    with pytest.raises(WrongFolder, match=words):
        _record(tmp_path, "b", error_bound_ns=bounds[1])


def test_joined_files_of_another_run_are_refused(tmp_path: Path) -> None:
    _record(tmp_path / "one", "a")
    with Recorder(tmp_path / "two", run_id="other"):
        pass

    result = checked(_join(tmp_path / "all", tmp_path / "one", tmp_path / "two"))

    assert result.exit_code == 2
    assert "recorded the run 'other', but run.json names 'run'" in result.output


def test_joined_files_that_agree_are_judged_together(tmp_path: Path) -> None:
    _record(tmp_path / "one", "a")
    _record(tmp_path / "two", "b")

    assert verdict_of(_join(tmp_path / "all", tmp_path / "one", tmp_path / "two"))["operations"] == 2


def test_equal_tokens_of_two_folders_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In two folders, two processes may have one token. Their files differ by name, and the audit refuses both."""
    with monkeypatch.context() as patched:
        patched.setattr(folder, "TOKEN_BITS", 0)
        _record(tmp_path / "one", "a")
        _record(tmp_path / "two", "b")
    assert {row["op_id"] for row in rows_of(tmp_path / "one")} == {row["op_id"] for row in rows_of(tmp_path / "two")}

    result = checked(_join(tmp_path / "all", tmp_path / "one", tmp_path / "two"))

    assert result.exit_code == 2
    assert "op_id" in result.output


def test_in_one_folder_all_tokens_differ_and_their_number_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "TOKEN_BITS", 4)
    taken = {folder.begin_process(_made(tmp_path)).token for _ in range(8)}
    monkeypatch.setattr(folder, "TOKEN_BITS", 0)
    folder.begin_process(_made(tmp_path / "full"))

    assert len(taken) == 8
    with pytest.raises(WrongFolder, match=r"too many processes for tokens of 0 bits: .* give a new folder"):
        folder.begin_process(tmp_path / "full")


def _made(place: Path) -> Path:
    (place / "recorders").mkdir(parents=True, exist_ok=True)
    return place


def test_an_operation_has_63_bits_and_the_last_one_of_a_process_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert folder.TOKEN_BITS + folder.OPERATION_BITS == 63
    monkeypatch.setattr(recorder, "OPERATION_BITS", 3)
    with Recorder(tmp_path) as opened:
        for _ in range(8):
            opened.get("client", "key").ok(None)
        words = r"has begun 2\^3 operations, so there is no number for get of 'key'; close, and begin a new recorder"
        with pytest.raises(RecordingFull, match=words):
            opened.get("client", "key")
    with Recorder(tmp_path) as opened:
        opened.get("client", "key").ok(None)

    assert verdict_of(tmp_path)["operations"] == 9


def test_a_part_that_one_machine_dropped_is_not_judged_after_joining(tmp_path: Path) -> None:
    """The other machine has whole rows of its own, but the writes that it read were dropped here."""
    keys = [f"key {number}" for number in range(60)]
    options: dict[str, Any] = {"run_id": "run", "values": "plain", "at_bound": "drop"}
    with (
        Recorder(tmp_path / "one", bytes_max=10_000, **options) as one,
        Recorder(tmp_path / "two", **options) as two,
    ):
        for key in keys:
            one.put("writer", key, "value").ok()
            two.get("reader", key).ok("value")
    everything = _join(tmp_path / "all", tmp_path / "one", tmp_path / "two")
    marks = list((everything / "ops").glob("dropped-*"))

    assert verdict_of(everything)["status"] == "linearizable"
    assert marks
    only_rows = tmp_path / "only rows"
    only_rows.mkdir()
    for path in (everything / "ops").glob("*.jsonl"):
        shutil.copy(path, only_rows)
    assert verdict_of(only_rows)["status"] == "linearizable"
    assert checked(Path(f"{only_rows}/*.jsonl")).exit_code == 0
    for mark in marks:
        mark.unlink()
    assert verdict_of(everything)["status"] == "violation"


@pytest.mark.parametrize("options", [{"sample": 0.3}, {"at_bound": "drop", "bytes_max": 40_000}])
def test_revisions_of_keys_that_are_not_recorded_are_no_hole(tmp_path: Path, options: dict[str, Any]) -> None:
    """The revisions of a store count all its keys. An unknown write may have any revision that nobody else has."""
    with Recorder(tmp_path, **options) as opened:
        for number in range(200):
            key, revision = f"key {number % 50}", number + 2
            if number % 9 == 0:
                opened.put("writer", key, f"{number}").unknown("TimeoutError")
            else:
                opened.put("writer", key, f"{number}").ok(revision=revision)
            opened.get("reader", key).ok(f"{number}", revision=revision, mod_revision=revision)

    verdict = verdict_of(tmp_path)

    assert 0 < verdict["operations"] < 400
    assert verdict["status"] == "linearizable"


def test_operations_that_a_bound_refused_are_told(tmp_path: Path) -> None:
    """If the program sends a write that was refused, its value is one that nobody wrote. So the audit says why."""
    with Recorder(tmp_path, bytes_max=1000) as opened:
        refused = 0
        for number in range(20):
            try:
                opened.put("client", "key", f"{number}").ok()
            except RecordingFull:
                refused += 1

    result = checked(tmp_path)

    assert refused > 0
    assert f"refused {refused} operations at a bound; if the program carried them out" in result.stderr.replace(
        "\n", " "
    )


def _follow(place: Path, *options: str) -> Result:
    state = place.with_suffix(".state.json")
    return CliRunner().invoke(cli, ["follow", "--json", "--settled", "0", *options, str(state), str(place)])


def test_follow_refuses_files_of_a_recorder_that_is_not_closed(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run") as opened:
        put = opened.put("client", "key", "value")
        result = _follow(tmp_path / "run")
        put.ok()

    assert result.exit_code == 2
    assert "may still change: process" in result.output
    assert "has not closed its recorder" in result.output
    assert "--final" in result.output
    assert _follow(tmp_path / "run", "--final").exit_code == 0


def test_follow_reads_what_a_killed_process_left_if_it_is_final(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run") as opened:
        opened.put("client", "key", "value").ok()
    (state,) = (tmp_path / "run" / "recorders").glob("*.json")
    state.write_text("")  # A kill may come before anything was stated.

    assert "states nothing in recorders/" in _follow(tmp_path / "run").output
    assert _follow(tmp_path / "run", "--final").exit_code == 0

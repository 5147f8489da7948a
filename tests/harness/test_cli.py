"""Bad input of a new user gets a sentence with the remedy, exit code 2, and no traceback."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from harness.cli import LazyGroup, harness, main, run


class Ended(NamedTuple):
    """The exit code of a command, and its output."""

    exit_code: int
    stdout: str
    stderr: str


class Harness:
    """Run `hwm-harness` in this process, with the `main` of the console script."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: str) -> Ended:
        self._monkeypatch.setattr(sys, "argv", ["hwm-harness", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        said = self._capsys.readouterr()
        return Ended(int(end.value.code or 0), said.out, said.err)


@pytest.fixture
def hwm_harness(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Harness:
    return Harness(monkeypatch, capsys)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rnu"], "run"),
        (["simulat"], "simulate"),
        (["run", "--node", "3", "--out", "x"], "--nodes"),
        (["run"], "--out"),
        (["run", "--out", "{tmp}/new", "--faults", "partitoin"], "did you mean partition"),
        (["run", "--out", "{tmp}/new", "--nodes", "11"], "from 1 to 9"),
        (["run", "--out", "{tmp}/new", "--nodes", "0"], "from 1 to 9"),
        (["run", "--out", "{tmp}/new", "--nodes", "three"], "not a valid integer"),
        (["run", "--out", "{tmp}/new", "--seconds", "0"], "from 1 to"),
        (["run", "--out", "{tmp}/new", "--nodes", "1", "--faults", "partition"], "cannot be partitioned"),
        (["run", "--out", "{tmp}/new", "--nodes", "9", "--faults", "kill,replace"], "use --nodes 8"),
        (["run", "--out", "{tmp}/new", "--faults", "clock-jump"], "leaders read by lease"),
        (["run", "--out", "{tmp}/new", "--read-ways", "leas=0.1"], "did you mean lease"),
        (["run", "--out", "{tmp}/new", "--in-flight", "0"], "from 1 to"),
        (["run", "--out", "{tmp}/new", "--bulk", "5000"], "from 0 to"),
        (["run", "--out", "{tmp}/new", "--bulk", "64", "--rate", "100"], "leave out --in-flight and --rate"),
        (["run", "--out", "{tmp}"], "not empty"),
        (["run", "--out", "{tmp}/file"], "not a folder"),
        (["run", "--out", "/proc/nowhere"], "cannot be written"),
        (["run", "--out", "{tmp}/new", "--format", "csv"], "jsonl"),
        (["report", "{tmp}"], "holds no recorded run"),
        (["soak", "--out", "{tmp}/new", "--faults", "pause"], "would never kill"),
    ],
)
def test_bad_input_is_answered_with_the_way_out(
    hwm_harness: Harness, tmp_path: Path, arguments: list[str], words: str
) -> None:
    """The error names the existing command, flag or value that is nearest to the wrong word."""
    (tmp_path / "file").write_text("")
    done = hwm_harness(*(argument.format(tmp=tmp_path) for argument in arguments))

    assert done.exit_code == 2, done
    assert words in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert not (tmp_path / "new").exists()


def test_a_report_of_a_recorded_run_is_json_on_request(hwm_harness: Harness, tmp_path: Path) -> None:
    """The command writes data to standard output, and messages to standard error."""
    (tmp_path / "ops").mkdir()
    (tmp_path / "run.json").write_text('{"run_id": "r", "seed": 7, "finished": true}')
    done = hwm_harness("report", str(tmp_path), "--json")

    assert json.loads(done.stdout)["run_id"] == "r"
    assert done.exit_code == 3  # The partitions of the run were never healed.


def test_the_page_on_the_harness_names_every_option_of_a_run_and_every_command() -> None:
    """A newcomer reads docs/reference/harness.md, and can use only the options that the page names."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "harness.md").read_text(encoding="utf-8")
    options = [option for parameter in run.params for option in parameter.opts if option.startswith("--")]
    assert len(options) > 10
    assert [option for option in options if option not in page] == []
    commands = set(harness.list_commands(click.Context(harness))) - set(
        LazyGroup.lazy
    )  # Lazily loaded commands have help pages of their own.
    assert [name for name in commands if f"hwm-harness {name}" not in page] == []

"""The named scenarios hold; a failing scenario reports the step, the expectation and the actual state."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

import pytest

import raft.core.elections
import raft.core.follower
from harness.cli import main
from harness.errors import BadInput
from harness.scenarios.errors import BadScenario, Broken, Mismatch
from harness.scenarios.language import Scenario, parse
from harness.scenarios.play import load, named_scenarios, play_to_the_end
from harness.scenarios.verbs import ACTIONS


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", named_scenarios())
def test_a_named_scenario_holds(name: str) -> None:
    scenario = load(name)

    assert play_to_the_end(scenario) >= 3
    assert scenario.title != name, "its first comment says what it shows"


def test_the_scenarios_that_the_docs_promise_are_there() -> None:
    promised = {
        "figure-7",
        "figure-8-overwritten",
        "figure-8-committed",
        "mark-old-leader-dies",
        "mark-unsynced-copy",
        "mark-returning-leader",
        "mark-higher-term-is-cut",
        "mark-lags-on-a-follower",
        "mark-reaches-idle-followers",
        "delayed-duplicate-append",
        "pre-vote-one-way-partition",
        "stale-read-after-a-pause",
        "vote-lost-in-a-crash",
        "vote-survives-a-crash",
    }

    assert promised <= set(named_scenarios())


def written(*lines: str) -> Scenario:
    return parse("mine", "mine.scenario", "\n".join(lines))


def test_a_wrong_expectation_fails_with_expected_and_actual_side_by_side() -> None:
    scenario = written("# wrong", "cluster s1 s2 s3", "elect s1", "settle", "expect log s1 s2 = 1 1")

    with pytest.raises(Mismatch) as failed:
        play_to_the_end(scenario)

    assert str(failed.value).splitlines() == [
        "mine.scenario:5: expect log s1 s2: s1",
        "    expected  |  actual",
        "    1 1       |  1",
    ]


@pytest.mark.parametrize(
    "expectation", ["role s2 = leader", "commit s2 = 0", "wire *>* = 1", "noticed truncated all = 1"]
)
def test_an_expectation_that_is_not_so_fails(expectation: str) -> None:
    """Each kind of expectation fails if it is not true of the cluster."""
    with pytest.raises(Mismatch):
        play_to_the_end(written("cluster s1 s2 s3", "elect s1", "settle", f"expect {expectation}"))


END = "expect term all = 0"


@pytest.mark.parametrize(
    ("lines", "line", "words"),
    [
        (["propose s1 x"], 1, "cluster s1 s2 s3"),
        (["cluster s1 s1"], 1, "different members"),
        (["cluster s1 S2"], 1, "not the name of a member"),
        (["cluster s1 s2 with single-entry"], 1, "did you mean single-entries?"),
        (["cluster s1 s2", "log s1 2 1", END], 2, "never go back"),
        (["cluster s1 s2", "elekt s1", END], 2, "did you mean elect?"),
        (["cluster s1 s2", "elect s3", END], 2, "did you mean s"),
        (["cluster s1 s2", "elect", END], 2, "lacks a member"),
        (["cluster s1 s2", "elect s1 s2", END], 2, "too many words"),
        (["cluster s1 s2", "wait long", END], 2, "is not a number"),
        (["cluster s1 s2", "wait 0", END], 2, "not from 1 to"),
        (["cluster s1 s2", "settle", "log s1 1", END], 3, "too late"),
        (["cluster s1 s2", "deliver s1 s2", END], 2, "s1>s2"),
        (
            ["cluster s1 s2", "timeout s1", "sync s1", "deliver s1>s2 vote-requset", END],
            4,
            "did you mean vote-request?",
        ),
        (["cluster s1 s2", "timeout s1", "deliver s2>s1", END], 3, "on the wire: s1>s2 pre-vote-request"),
        (["cluster s1 s2", "propose s1 x", END], 2, "is not the leader"),
        (["cluster s1 s2", "heartbeat s1", END], 2, "does not lead"),
        (["cluster s1 s2", "crash s1", "timeout s1", END], 3, "restart s1"),
        (["cluster s1 s2", "crash s1", "crash s1", END], 3, "down already"),
        (["cluster s1 s2", "restart s1", END], 2, "is up"),
        (["cluster s1 s2", "resume s1", END], 2, "not paused"),
        (["cluster s1 s2", "again it", END], 2, "kept message"),
        (["cluster s1 s2 s3", "cut s1", "elect s1", END], 3, "was not elected: no majority answered"),
        (["cluster s1 s2", "expect durabel s1 = 1"], 2, "did you mean durable?"),
        (["cluster s1 s2", "expect log s1 1"], 2, "says no value"),
        (["cluster s1 s2", "expect log = 1"], 2, "names no member"),
        (["cluster s1 s2", "expect read r1 = open"], 2, "is not a read"),
        (["cluster s1 s2", "settle"], 2, "nothing is expected"),
        (["# only a comment"], 1, "no step"),
    ],
)
def test_a_file_that_is_written_wrongly_is_told_where_and_what_would_be_right(
    lines: list[str], line: int, words: str
) -> None:
    with pytest.raises(BadScenario) as failed:
        play_to_the_end(written(*lines))

    assert str(failed.value).startswith(f"mine.scenario:{line}: ")
    assert words in str(failed.value)


def test_a_scenario_catches_a_deliberate_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    """The patched voters ignore Raft §5.4.1, so the member without entry 6 wins."""
    monkeypatch.setattr(raft.core.elections.Elections, "_is_up_to_date", lambda *_: True)

    with pytest.raises(Mismatch, match="expect role s3"):
        play_to_the_end(load("mark-old-leader-dies"))


def test_an_invariant_of_the_core_that_breaks_names_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise AssertionError("on purpose")

    monkeypatch.setattr(raft.core.follower.Follower, "on_append", broken)

    with pytest.raises(Broken, match=r"mine\.scenario:3: settle") as failed:
        play_to_the_end(written("cluster s1 s2", "elect s1", "settle", END))
    assert "on purpose" in str(failed.value)


@pytest.mark.parametrize(
    "error",
    [Mismatch("a", 1, "b", "c", "d"), BadScenario("a", 1, "b", "c"), Broken("a", 1, "b", "c")],
    ids=lambda error: type(error).__name__,
)
def test_errors_cross_process_borders(error: Exception) -> None:
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_scenario_that_does_not_exist_is_answered_with_the_nearest() -> None:
    with pytest.raises(BadInput, match="did you mean figure-7"):
        load("figure7")


class Command:
    """`hwm-harness scenario`, run in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        self._monkeypatch.setattr(sys, "argv", ["hwm-harness", "scenario", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        said = self._capsys.readouterr()
        return int(end.value.code or 0), said.out, said.err


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capsys)


def test_the_command_plays_a_file_and_exits_3_if_it_does_not_hold(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "mine.scenario"
    path.write_text("# Mine\ncluster s1\ntimeout s1\nsettle\nexpect role s1 = follower\n", encoding="utf-8")

    exit_code, out, _ = command(str(path), "figure-7")

    assert exit_code == 3
    assert "FAILED  mine: Mine" in out
    assert "follower  |  leader" in out
    assert "ok      figure-7" in out


def test_the_command_exits_2_if_a_file_is_written_wrongly(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "mine.scenario"
    path.write_text("cluster s1\ntiemout s1\n" + END, encoding="utf-8")

    exit_code, _, err = command(str(path))

    assert exit_code == 2
    assert f"{path}:2" in err
    assert "did you mean timeout?" in err


def test_the_command_lists_shows_and_explains(command: Command) -> None:
    _, listed, _ = command("--list")
    _, shown, _ = command("--show", "mark-returning-leader")
    _, explained, _ = command("--verbs")
    _, as_json, _ = command("--json", "figure-7")
    _, helped, _ = command("--help")

    assert all(name in listed for name in named_scenarios())
    assert "propose s2 five" in shown
    assert "on the wire: s2>s3" in shown
    assert all(verb in explained for verb in ACTIONS)
    assert json.loads(as_json)[0]["held"] is True
    assert command("play", "--json", "figure-7") == (0, as_json, "")
    assert "high-water-mark" in helped


def test_the_scenario_of_the_docs_holds() -> None:
    """The scenario comes from docs/internals/testing.md, section "Scenarios"."""
    page = (Path(__file__).parents[3] / "docs" / "internals" / "testing.md").read_text(encoding="utf-8")
    example = page[page.index("# A vote needs a disk") :].partition("```")[0]

    assert play_to_the_end(parse("docs", "docs/internals/testing.md", example)) == 3

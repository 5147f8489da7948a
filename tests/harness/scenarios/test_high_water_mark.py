"""The accounts of the high-water mark end as described at every level, and the pictures show the engine's real
state."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import raft.core.elections
from harness.cli import main
from harness.errors import BadInput
from harness.scenarios.high_water_mark.accounts import FOLDER, NAMES, load_accounts, play_account
from harness.scenarios.high_water_mark.cli import account_lines
from harness.scenarios.high_water_mark.page import draw_page
from harness.scenarios.high_water_mark.picture import NO_COMMAND, Cell, LogPicture, Marks, Row, ranges
from harness.scenarios.high_water_mark.terminal import draw
from harness.scenarios.language import LEVELS

LEVELS_PLAYED = {
    "leader-dies": set(LEVELS),
    "entry-is-cut": set(LEVELS),
    "ends-and-marks": set(LEVELS),
    "acks-1": {"leader"},
    "acks-all": {"in-sync", "majority"},
    "one-copy": set(LEVELS),
    "slow-follower": set(LEVELS),
}
"""The acknowledgement levels at which each account makes sense. The account of acks=1 concerns one
level. An account in which a majority answers concerns at least two levels."""


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", NAMES)
def test_an_account_ends_as_told_at_each_of_its_levels(name: str) -> None:
    (scenario,) = load_accounts([name])
    account = play_account(scenario)

    assert [part.problem for part in account.parts] == [None] * len(account.parts)
    assert set(account.levels) == LEVELS_PLAYED[name]
    assert all(part.expectations >= 10 for part in account.parts)
    assert all(part.pictures for part in account.parts)
    assert account.about


def test_every_account_is_listed() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.scenario")) == sorted(NAMES)


def test_both_elections_are_played() -> None:
    endings = {
        scenario.name: list(dict.fromkeys(run.ending for run in scenario.runs())) for scenario in load_accounts(["all"])
    }

    assert endings["leader-dies"] == ["s2 is elected: E survives, F is cut", "s3 is elected: E and F are cut"]
    assert endings["one-copy"] == ["s2 is elected: F survives", "s3 is elected: F is lost"]


def test_the_accounts_follow_each_other_without_gap_in_the_pictures() -> None:
    """The common beginning is shown once, and each ending continues from there."""
    (scenario,) = load_accounts(["one-copy"])
    survives, lost = list(play_account(scenario).at("majority"))

    assert [len(part.beginning) for part in (survives, lost)] == [2, 0]
    assert survives.pictures[0].sentence.startswith("s2 is elected")
    assert lost.pictures[0].sentence.startswith("s3 is elected")


def test_an_account_fails_if_a_member_that_lacks_entries_can_be_elected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The patched voters ignore Raft §5.4.1."""
    monkeypatch.setattr(raft.core.elections.Elections, "_is_up_to_date", lambda *_: True)
    (scenario,) = load_accounts(["leader-dies"])

    problems = [part.problem for part in play_account(scenario).parts if part.problem]

    assert len(problems) == 4  # Each level has one problem, in the ending in which s3 was expected to lose.
    assert all("expect role s3: s3" in problem and "s2 is elected" in problem for problem in problems)


def test_an_account_with_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(BadInput, match="did you mean leader-dies"):
        load_accounts(["leader-died"])


@pytest.fixture(scope="module")
def plays() -> list[tuple[LogPicture, ...]]:
    """The pictures of each part of each account, in order."""
    parts = [part for scenario in load_accounts(["all"]) for part in play_account(scenario).parts]
    return [part.beginning + part.pictures for part in parts]


def test_no_client_ever_sees_what_is_lost_later(plays: list[tuple[LogPicture, ...]]) -> None:
    """The commands that a member shows at any time are a prefix of the commands that every member shows at the end."""
    for pictures in plays:
        ends = [each.sees for each in pictures[-1].rows if each.sees is not None]
        for picture in pictures:
            for each in picture.rows:
                seen = each.sees or ()
                assert all(end[: len(seen)] == seen for end in ends), (picture.sentence, each, ends)


def test_members_show_what_is_at_or_below_their_mark_and_on_their_disk(plays: list[tuple[LogPicture, ...]]) -> None:
    for picture in (picture for pictures in plays for picture in pictures):
        for each in picture.rows:
            if each.sees is not None and each.mark is not None:
                committed = each.cells[: min(each.mark, each.durable_index)]
                assert each.sees == tuple(cell.words for cell in committed if cell.words != NO_COMMAND), (
                    picture.sentence
                )


def test_with_a_majority_in_sync_the_mark_of_kafka_is_not_ahead(plays: list[tuple[LogPicture, ...]]) -> None:
    compared = [
        (picture.marks.ours >= picture.marks.kafka, 2 * len(picture.marks.in_sync_ids) > len(picture.rows))
        for pictures in plays
        for picture in pictures
        if picture.marks is not None and picture.marks.kafka is not None
    ]

    assert all(is_not_behind for is_not_behind, has_majority in compared if has_majority)
    assert {is_not_behind for is_not_behind, has_majority in compared if not has_majority} == {False}


# The pictures


def row(node_id: str, **fields: object) -> Row:
    cells = (Cell(1, 1, "·", True), Cell(2, 1, "A", True), Cell(3, 2, "B", False))
    known = {
        "state": "follower", "term": 2, "cells": cells, "durable_index": 2, "mark": 2, "in_sync": True, "sees": ("A",)
    }  # fmt: skip
    return Row(node_id=node_id, **(known | fields))  # type: ignore[arg-type]


def test_a_picture_says_without_colours_what_there_is_to_see() -> None:
    rows = (
        row("s1", state="leader", mark=0, sees=()),
        row("s2"),
        row("s3", state="down", cells=(), durable_index=0, mark=None, in_sync=False, sees=None),
    )
    answers = (("applied", ("A",)), ("waiting", ("B", "late")))
    picture = LogPicture("x", rows, answers, Marks("s1", 2, 1, ("s1", "s2"), ()))

    assert [line.plain for line in draw(picture)] == [
        "             term   1   2   3     disk  mark  in sync  a client sees",
        "s1  leader      2  ┃1· │1A │2B~│     2     0  yes      nothing",
        "s2  follower    2  │1· │1A ┃2B~│     2     2  yes      A",
        "s3  down        2  │                 0     -  no       -",
        "answers  A: applied; B, late: waiting",
        "marks    ours 2 (a majority has it); Kafka's 1 (all in sync have it: s1 s2); as Kafka counts: 3 and 2",
    ]


def test_a_picture_says_when_fewer_than_the_minimum_are_in_sync() -> None:
    """Since Kafka 4.0, Kafka's mark does not move while too few members are in sync."""
    picture = LogPicture("x", (row("s1"),), (), Marks("s1", 2, 3, ("s1",), (), wanted_in_sync=2))

    assert draw(picture)[-1].plain.endswith("as Kafka counts: 3 and 4; Kafka 4.0 waits until 2 are in sync")


def test_on_a_narrow_terminal_the_facts_follow_below_the_logs() -> None:
    picture = LogPicture("x", (row("s1"),), (), None)

    assert [line.plain for line in draw(picture, 40)] == [
        "             term   1   2   3",
        "s1  follower    2  │1· │1A ┃2B~│",
        "    disk  mark  in sync  a client sees",
        "s1     2     2  yes      A",
        "marks    no leader, so no mark moves",
    ]


def test_the_mark_of_kafka_is_not_known_before_all_members_in_sync_were_heard() -> None:
    (scenario,) = load_accounts(["acks-1"])
    (part,) = play_account(scenario).parts
    after_the_election, at_the_end = part.pictures[2:]

    assert after_the_election.marks == Marks("s2", 3, None, ("s1", "s2", "s3"), ("s1",))
    assert at_the_end.marks == Marks("s2", 3, 3, ("s1", "s2", "s3"), ())
    assert "Kafka's is not known: s1 counts as in sync" in draw(after_the_election)[-1].plain


def test_letters_in_a_row_are_a_range() -> None:
    assert ranges(()) == ""
    assert ranges("AB") == "A, B"
    assert ranges(["A", "B", "C", "E", "FG", "H"]) == "A-C, E, FG, H"


class Outline(HTMLParser):
    """The tags that a page never closes, and all resources that the page would load."""

    EMPTY = frozenset({"meta", "link"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_loads_nothing() -> None:
    accounts = [play_account(scenario) for scenario in load_accounts(["all"])]

    page = draw_page(accounts)
    outline = Outline()
    outline.feed(page)
    outline.close()

    assert outline.open == []
    assert [each for each in outline.loads if not each.startswith("#")] == ["data:,"]
    pictures = [picture for account in accounts for part in account.parts for picture in part.beginning + part.pictures]
    assert page.count("<figure>") == len(pictures) > 100
    assert all(f'id="{name}"' in page for name in NAMES)
    assert page.count("ends as told") == len(NAMES)
    assert draw_page(accounts) == page


# The documents

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def everything() -> str:
    """The output of `hwm-harness scenario high-water-mark all --level all`, apart from the verdicts."""
    accounts = [play_account(scenario) for scenario in load_accounts(["all"])]
    return "\n".join(line.plain for account in accounts for line in account_lines(account, "all", None))


@pytest.mark.parametrize(("page", "pictures_min"), [("README.md", 1), ("docs/concepts/high-water-mark.md", 20)])
def test_the_pictures_of_a_page_are_those_of_the_command(everything: str, page: str, pictures_min: int) -> None:
    """The text of a picture on a page may lack the picture's number."""
    pictures = re.findall(r"```text\n(.*?)\n```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)

    assert len(pictures) >= pictures_min
    unnumbered = re.sub(r"^\d+\. ", "", everything, flags=re.MULTILINE)
    assert [each for each in pictures if f"\n{each}\n" not in everything and f"\n{each}\n" not in unnumbered] == []


def test_a_page_shows_each_account() -> None:
    text = (ROOT / "docs" / "concepts" / "high-water-mark.md").read_text(encoding="utf-8")

    assert [name for name in NAMES if f"`{name}`" not in text] == []


# The command


class Command:
    """`hwm-harness scenario high-water-mark`, run in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        self._monkeypatch.setattr(sys, "argv", ["hwm-harness", "scenario", "high-water-mark", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        said = self._capsys.readouterr()
        return int(end.value.code or 0), said.out, said.err


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capsys)


def test_without_a_name_the_accounts_are_listed(command: Command) -> None:
    exit_code, out, _ = command()
    _, as_json, _ = command("--json")

    assert exit_code == 0
    assert all(name in out for name in NAMES)
    assert [each["name"] for each in json.loads(as_json)] == list(NAMES)


def test_all_plays_all(command: Command) -> None:
    exit_code, out, _ = command("all", "--quiet")

    assert exit_code == 0
    assert out.count("ends as told") == sum(map(len, LEVELS_PLAYED.values()))
    assert "┃" not in out


def test_a_level_can_be_chosen(command: Command) -> None:
    _, usual, _ = command("leader-dies")
    _, chosen, _ = command("leader-dies", "--level", "leader")
    _, every, _ = command("leader-dies", "--level", "all")
    _, absent, _ = command("acks-1", "--level", "none")

    assert "answers  A-D: applied; E, F: waiting" in usual
    assert "answers  A-F: accepted" in chosen
    assert all(f"── level {level} ──" in every for level in LEVELS)
    assert "it has no level none" in absent
    assert "\x1b" not in usual


def test_json_has_what_the_pictures_show(command: Command) -> None:
    exit_code, out, _ = command("entry-is-cut", "--json")

    (account,) = json.loads(out)
    assert exit_code == 0
    assert account["held"] is True
    last = next(part for part in account["parts"] if part["level"] == "majority")["pictures"][-1]
    assert [[cell["term"] for cell in each["cells"]] for each in last["rows"]] == [[1, 1, 1, 2, 2]] * 3
    assert [each["mark"] for each in last["rows"]] == [5, 5, 5]


def test_a_page_is_written(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "accounts.html"

    exit_code, _, err = command("all", "--quiet", "--html", str(path))

    assert exit_code == 0
    assert f"drawn: {path}" in err
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_an_account_that_does_not_end_as_told_exits_3(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The patched voters ignore Raft §5.4.1, so s3 is elected without F."""
    monkeypatch.setattr(raft.core.elections.Elections, "_is_up_to_date", lambda *_: True)

    exit_code, out, _ = command("acks-all", "--quiet")

    assert exit_code == 3
    assert "acks-all, level in-sync: FAILED" in out
    assert "expected       |  actual" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["leader-died"], "did you mean leader-dies?"),
        (["acks-1", "--html", "/no-such-folder/x.html"], "there is no folder /no-such-folder"),
        (["acks-1", "--html", "/"], "is a folder"),
        (["--html", "x.html"], "name an account, or `all`"),
    ],
)
def test_bad_input_exits_2_and_says_what_would_be_right(command: Command, arguments: list[str], words: str) -> None:
    exit_code, _, err = command(*arguments)

    assert exit_code == 2
    assert words in err

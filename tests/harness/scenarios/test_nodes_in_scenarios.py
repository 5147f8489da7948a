"""Scenarios with whole nodes: every suitable scenario of cores also holds with whole nodes, writes have levels, and a
scenario can have several endings."""

from __future__ import annotations

import re

import pytest

import raft.node.acknowledgements
from harness.scenarios.errors import BadScenario, Mismatch
from harness.scenarios.language import ENDINGS_MAX, Scenario, parse
from harness.scenarios.play import named_scenarios, play, play_run, play_to_the_end
from raft import Accepted

WITH_NODES = [
    "figure-8-committed",
    "figure-8-overwritten",
    "mark-higher-term-is-cut",
    "mark-returning-leader",
    "pre-vote-one-way-partition",
    "stale-read-after-a-pause",
    "vote-lost-in-a-crash",
    "vote-survives-a-crash",
]
"""The scenarios that depend neither on the time at which a core announces its mark nor on one entry per command."""


def written(*lines: str) -> Scenario:
    return parse("mine", "mine.scenario", "\n".join(lines))


@pytest.mark.parametrize("name", WITH_NODES)
def test_a_play_of_cores_holds_with_whole_nodes(name: str) -> None:
    text = named_scenarios()[name].read_text(encoding="utf-8")
    text = re.sub(r"^cluster [^\n]*", lambda found: _with_nodes(found[0]), text, count=1, flags=re.MULTILINE)

    assert " nodes" in text
    assert play_to_the_end(parse(name, name, text)) >= 3


def _with_nodes(line: str) -> str:
    return f"{line} nodes" if " with " in line else f"{line} with nodes"


BEGINNING = ("cluster s1 s2 s3 with nodes", "elect s1", "run 100")


def test_each_level_has_its_answer() -> None:
    """docs/reference/specification.md#910-acknowledgement-levels."""
    scenario = written(
        *BEGINNING,
        "slow s3",
        "write s1 N as none",
        "write s1 L as leader",
        "write s1 M as majority",
        "write s1 I as in-sync",
        "expect answer N = none",
        "expect answer L = accepted",
        "expect answer M I = waiting",
        "settle",
        "expect answer M = applied",
        "expect answer I = waiting",
        "expect in-sync s1 = s1 s2 s3",
        "expect in-sync-index s1 = 1",
        "run 1500",
        "expect in-sync s1 = s1 s2",
        "expect in-sync s2 = nothing",
        "expect answer I = acknowledged by s1 s2",
        "expect visible s1 s2 = N L M I",
    )

    assert play_to_the_end(scenario) == 11


def test_the_leaders_disk_answers_and_nothing_else() -> None:
    scenario = written(
        *BEGINNING,
        "slow s1",
        "write s1 L as leader",
        "expect answer L = waiting",
        "sync s1",
        "expect answer L = accepted",
    )

    assert play_to_the_end(scenario) == 2


def test_a_write_is_unanswered_after_its_member_has_ended() -> None:
    scenario = written(
        *BEGINNING,
        "write s1 M",
        "crash s1",
        "expect answer M = unanswered",
        "restart s1",
        "expect answer M = unanswered",
    )

    assert play_to_the_end(scenario) == 2


def test_a_write_that_is_cut_is_refused() -> None:
    scenario = written(
        *BEGINNING, "cut s1", "write s1 M", "elect s2", "run 100", "heal", "run 1000", "expect answer M = refused"
    )

    assert play_to_the_end(scenario) == 1


def test_below_the_minimum_a_write_of_level_in_sync_is_refused_and_not_appended() -> None:
    scenario = written(
        *BEGINNING,
        "minimum 3",
        "crash s3",
        "run 1500",
        "write s1 I as in-sync",
        "expect answer I = refused",
        "expect end s1 = 1",
        "write s1 M as majority",
        "settle",
        "expect answer M = applied",
    )

    assert play_to_the_end(scenario) == 3


def test_a_write_that_too_few_members_hold_in_the_end_is_under_replicated() -> None:
    """Enough members are in sync when the write is appended. One of these members leaves the set of members in sync
    while the write waits for its copy."""
    scenario = written(
        *BEGINNING,
        "minimum 3",
        "slow s3",
        "write s1 A as in-sync",
        "run 500",
        "expect answer A = waiting",
        "run 1000",
        "expect answer A = under-replicated by s1 s2",
    )
    assert play_to_the_end(scenario) == 2


def test_a_read_shows_what_was_committed_when_it_was_answered() -> None:
    scenario = written(
        *BEGINNING,
        "write s1 A",
        "run 100",
        "read s1 r",
        "expect shown r = nothing",
        "run 100",
        "write s1 B",
        "run 100",
        "expect shown r = A",
        "expect visible s1 = A B",
    )

    assert play_to_the_end(scenario) == 3


def test_a_restarted_member_knows_its_hint_of_the_mark() -> None:
    """docs/reference/specification.md#45-hard-state."""
    scenario = written(
        *BEGINNING, "write s1 A", "run 100", "write s1 B", "run 100", "crash s2", "restart s2", "expect commit s2 = 2"
    )

    assert play_to_the_end(scenario) == 1


def test_a_scenario_with_levels_is_played_at_each_and_steps_can_choose() -> None:
    scenario = written(
        "levels leader majority",
        *BEGINNING,
        "write s1 A",
        "at leader: expect answer A = accepted",
        "at majority: expect answer A = waiting",
        "at leader, majority: expect end s1 = 2",
    )

    assert [run.level for run in scenario.runs()] == ["leader", "majority"]
    assert play_to_the_end(scenario) == 4


def test_each_ending_begins_after_the_common_steps() -> None:
    scenario = written(
        *BEGINNING,
        "write s1 A",
        "ending it is lost",
        "drop all *>*",
        "crash s1",
        "elect s2",
        "expect holds s2 = nothing",
        "ending it is kept",
        "settle",
        "expect holds s2 = A",
    )

    assert [(run.ending, run.common, run.is_first) for run in scenario.runs()] == [
        ("it is lost", 4, True),
        ("it is kept", 4, False),
    ]
    assert play_to_the_end(scenario) == 2
    _, kept = scenario.runs()
    assert [step.text for step, _ in play_run(kept)][-2:] == ["settle", "expect holds s2 = A"]


def test_a_mismatch_names_the_level_and_the_ending() -> None:
    scenario = written(
        "levels none", *BEGINNING, "ending right", "expect end s1 = 1", "ending wrong", "expect end s1 = 2"
    )

    with pytest.raises(Mismatch, match=r"expect end s1: s1 \(level none, wrong\)"):
        list(play(scenario))


END = "expect term all = 1"


@pytest.mark.parametrize(
    ("lines", "line", "words"),
    [
        (["levels leder", *BEGINNING, END], 1, "did you mean leader?"),
        (["levels", *BEGINNING, END], 1, "lacks a level"),
        (["levels leader", *BEGINNING, "at majority: settle", END], 5, "is not a level of this scenario"),
        ([*BEGINNING, "at leader: settle", END], 4, "is not a level of this scenario"),
        (["levels leader", *BEGINNING, "at leader settle", END], 5, "at leader: STEP"),
        (["levels leader", *BEGINNING, "at leader:", END], 5, "at leader: STEP"),
        (["levels leader", *BEGINNING, "at : settle", END], 5, "at leader: STEP"),
        ([*BEGINNING, "levels leader", END], 4, "too late"),
        ([*BEGINNING, "ending", END], 4, "lacks a title"),
        ([*BEGINNING, *["ending x", END] * (ENDINGS_MAX + 1)], 4 + 2 * ENDINGS_MAX, f"more than {ENDINGS_MAX}"),
        ([*BEGINNING, "show", END], 4, "lacks a sentence"),
        ([*BEGINNING, "write s1", END], 4, "lacks a word"),
        ([*BEGINNING, "write s1 as leader", END], 4, "lacks a word"),
        ([*BEGINNING, "write s1 A as", END], 4, "lacks a level"),
        ([*BEGINNING, "write s1 A as leder", END], 4, "did you mean leader?"),
        ([*BEGINNING, "write s1 A as leader B", END], 4, "too many words: B"),
        ([*BEGINNING, "write s2 A", END], 4, "is not the leader"),
        ([*BEGINNING, "write s1 A", "write s1 A", END], 5, "A is written already"),
        (["cluster s1 s2 s3", "elect s1", "write s1 A", END], 3, "a lone core has no clients"),
        (["cluster s1 s2 s3", "elect s1", "read s1 r", "expect shown r = A"], 4, "a lone core shows nothing"),
        ([*BEGINNING, "minimum two", END], 4, "is not a number"),
        ([*BEGINNING, "expect answer A = applied"], 4, "is not a word that was written"),
        ([*BEGINNING, "expect answer = applied"], 4, "is not a word that was written"),
    ],
)
def test_a_line_that_is_written_wrongly_is_named(lines: list[str], line: int, words: str) -> None:
    with pytest.raises(BadScenario) as failed:
        play_to_the_end(written(*lines))

    assert str(failed.value).startswith(f"mine.scenario:{line}: ")
    assert words in str(failed.value)


def test_a_wrong_answer_of_the_engine_fails_the_play(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer comes before the leader's disk has the entry."""

    def too_early(self: raft.node.acknowledgements.Acknowledgements, _: object) -> list[Accepted]:
        found = [Accepted(ticket, position.index, position.term) for ticket, position in self._undurable.items()]
        self._undurable.clear()
        return found

    monkeypatch.setattr(raft.node.acknowledgements.Acknowledgements, "_accepted", too_early)

    with pytest.raises(Mismatch, match="expect answer L"):
        play_to_the_end(written(*BEGINNING, "slow s1", "write s1 L as leader", "expect answer L = waiting"))

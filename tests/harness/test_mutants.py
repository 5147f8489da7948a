"""The catalogue of mutants fits the code, and the search catches exactly the mutants that it should catch."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.errors import BadInput
from harness.mutants.cli import choose, mutants
from harness.mutants.errors import BadCatalogue, DoesNotApply, WorkerFailed
from harness.mutants.hunt import Hunt
from harness.mutants.mutant import Change, Mutant, load_catalogue
from harness.mutants.outcome import HANGS, REPLAYED, SeedOutcome
from harness.mutants.process import Workers
from harness.mutants.sandbox import Copies, source_root

CATALOGUE = load_catalogue()
ROOT = source_root()


def a_mutant(file: str, replaces: str, by: str, *, name: str = "a defect", count: int = 1) -> Mutant:
    change = Change(file=file, replaces=replaces, by=by, count=count)
    return Mutant(name=name, why="a test", property_lost="none", changes=(change,))


def a_hunt(folder: Path, *wanted: Mutant, seeds_max: int = 2) -> Hunt:
    return Hunt(wanted, Copies(folder), Workers(), first_seed=1, seeds_max=seeds_max, jobs=1)


def named(text: str) -> Mutant:
    (found,) = choose(CATALOGUE, [text])
    return found


@pytest.mark.parametrize("mutant", CATALOGUE, ids=lambda mutant: mutant.name)
def test_a_mutant_applies_to_the_code_as_it_is(mutant: Mutant) -> None:
    """The text that a mutant replaces occurs in its file as often as the mutant says, and the result can be parsed as
    Python."""
    texts = mutant.mutated(ROOT)

    assert texts.keys() == {change.file for change in mutant.changes}
    for file, text in texts.items():
        assert text != (ROOT / file).read_text(encoding="utf-8")
        ast.parse(text, file)


def test_a_mutant_names_nothing_that_is_not_there(tmp_path: Path) -> None:
    """A mutant that raises a NameError would count as caught, but would prove nothing."""
    for number, mutant in enumerate(CATALOGUE):
        for file, text in mutant.mutated(ROOT).items():
            path = tmp_path / f"{number}" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    words = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select", "F821", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stdout


def test_the_tests_that_mutants_name_exist() -> None:
    named_tests = {test for mutant in CATALOGUE for test in mutant.tests}
    assert named_tests
    for test in named_tests:
        file, _, function = test.partition("::")
        defined = {getattr(node, "name", "") for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body}
        assert function in defined, test


@pytest.mark.timeout(200)
def test_a_mutant_that_names_tests_is_killed_by_one_of_them_or_survives(tmp_path: Path) -> None:
    """The hunt runs no seed of the simulation for such a mutant. It runs the named tests in a copy with the defect.
    They must pass in a copy without the defect."""
    killed = named("a commit does not compare the position")
    (change,) = killed.changes
    harmless = a_mutant(change.file, change.replaces, change.replaces + "  # indeed", name="harmless")
    absent = a_mutant(change.file, change.replaces, change.replaces + "  # indeed", name="no such test")
    hunt = a_hunt(
        tmp_path,
        killed,
        replace(harmless, tests=killed.tests),
        replace(absent, tests=("tests/harness/test_mutants.py::test_nothing",)),
    )

    results = {result.name: result for result in hunt.run() if result is not None}

    assert results[killed.name].to_json()["test"] == killed.tests[0]
    assert (results[killed.name].verdict, results["harmless"].verdict) == ("killed", "survived")
    assert "no test ran" in str(results["no such test"].error)


CLASSICS = {
    "two changes of the members are in flight",
    "members change before the leader has committed in its own term",
    "a removed leader counts itself",
    "a learner is counted in the quorum",
    "a configuration is not rolled back with its entry",
    "a joint configuration is left before it is committed",
    "only the new half is asked",
    "an entry of an old term commits by counting copies",
    "a vote is not persisted",
    "a vote request leaves before its tail is durable",
    "an append is acknowledged before it is durable",
    "a client is answered before the sync is done",
    "a delayed append cuts the entries behind it",
    "a batch is off by one",
    "a vote does not ask whose log is more complete",
    "a read does not wait for a commit of the own term",
    "a snapshot is labelled one entry too high",
    "entries are applied again after a snapshot",
    "an installed snapshot keeps a conflicting log",
    "recovery accepts a torn record",
    "the session table is not in the snapshot",
    "next_index never backs off",
    "a leader without a quorum does not step down",
    "a wall clock decides in the core",
    "the order of a set decides in the core",
    "the median of an even-sized cluster is off by one",
    "the low-water mark ignores one member",
    "a failed sync is tried again",
    "compaction passes entries that a peer needs, and no snapshot is sent",
}
"""The mistakes that are typical of any implementation of Raft."""


def test_the_classic_mistakes_are_all_there_and_can_be_chosen() -> None:
    """The catalogue marks the classic mistakes with `named = true`, and `--only-named` chooses them."""
    listed = CliRunner().invoke(mutants, ["--list", "--json", "--only-named"])

    assert {row["name"] for row in json.loads(listed.stdout)} == CLASSICS
    assert {mutant.name for mutant in CATALOGUE if mutant.is_named} == CLASSICS


def test_a_mutant_whose_text_is_gone_or_twice_there_is_an_error() -> None:
    """A change of the code needs a change of the mutant."""
    with pytest.raises(DoesNotApply, match="no longer applies: its text occurs 0 times"):
        a_mutant("raft/membership/quorum.py", "no such text", "").mutated(ROOT)
    with pytest.raises(DoesNotApply, match="0 times in raft/gone"):
        a_mutant("raft/gone.py", "x", "y").mutated(ROOT)
    with pytest.raises(DoesNotApply, match="not 1"):
        a_mutant("raft/membership/quorum.py", "voters", "electors").mutated(ROOT)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("mutant = 3", "a list of"),
        (
            "[[mutant]]\nname='x'\nwhy='y'\nproperty='z'\nfile='raft/a.py'\nreplaces='a'\nby='b'\ntests=['x']",
            "list of test ids",
        ),
        ("[[mutant]]\nname = 'x'", "why must be a text"),
        ("[[mutant]]\nname =", "Invalid value"),
        ("[[mutant]]\nseeds = 3", "unknown fields seeds"),
        (
            "[[mutant]]\nname='x'\nwhy='y'\nproperty='z'\nfile='harness/runs/run.py'\nreplaces='a'\nby='b'",
            "is not in raft",
        ),
        ("[[mutant]]\nname='x'\nwhy='y'\nproperty='z'\nfile='raft/core/log.py'\nreplaces='a'\nby='a'", "by itself"),
    ],
)
def test_a_catalogue_that_makes_no_sense_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    """A misspelt field must not be ignored."""
    (tmp_path / "some.toml").write_text(text, encoding="utf-8")

    with pytest.raises(BadCatalogue, match=problem):
        load_catalogue(tmp_path)


def test_a_copy_has_the_defect_and_the_checkout_does_not(tmp_path: Path) -> None:
    """Packages that the mutant does not change are links to the clean copy."""
    mutant = named("median of an even-sized")
    copies = Copies(tmp_path)

    root = copies.with_mutant(mutant)

    (change,) = mutant.changes
    assert change.by in (root / change.file).read_text(encoding="utf-8")
    assert change.replaces in (copies.clean / change.file).read_text(encoding="utf-8")
    assert change.replaces in (ROOT / change.file).read_text(encoding="utf-8")
    assert (root / "storage").is_symlink()
    copies.remove(root)
    assert copies.clean.is_dir()


@pytest.mark.timeout(100)
def test_a_clean_copy_passes_and_two_mutants_are_killed(tmp_path: Path) -> None:
    """The wall-clock mutant is caught by a replay in another process, and the mutant of the vote is caught by a
    rule."""
    clock, vote = named("a wall clock decides"), named("a vote is not persisted")
    hunt = a_hunt(tmp_path, clock, vote)

    results = {result.name: result for result in hunt.run() if result is not None}

    killed = results[vote.name]
    assert killed.verdict == "killed"
    assert killed.caught is not None
    assert killed.caught.rule == "a vote is durable before a message states it"
    assert killed.to_json()["seeds"] == killed.caught.seed
    assert results[clock.name].caught is not None
    assert results[clock.name].caught.rule == REPLAYED  # type: ignore[union-attr]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clean"]


@pytest.mark.timeout(100)
def test_a_mutant_that_does_not_run_is_an_error_and_a_harmless_one_survives(tmp_path: Path) -> None:
    """A mutant is caught only if it runs. A failed import or a crash at the start does not count."""
    text = "return self._state.commit_index >= self._own_first_index"
    broken = a_mutant("raft/core/leader.py", text, "return nothing of the kind", name="no python")
    crashing = a_mutant(
        "raft/core/elections.py", "self._begin()\n        request", "self.gone()\n        request", name="crash"
    )
    harmless = a_mutant("raft/core/leader.py", text, f"{text}  # indeed", name="harmless")
    hunt = a_hunt(tmp_path, broken, crashing, harmless, seeds_max=2)

    results = {result.name: result for result in hunt.run() if result is not None}

    assert results["no python"].verdict == "error"
    assert "SyntaxError" in str(results["no python"].error)
    assert results["crash"].verdict == "error"
    assert "before anything is committed" in str(results["crash"].error)
    assert results["harmless"].verdict == "survived"
    assert results["harmless"].seeds_run == 2


@pytest.mark.timeout(60)
def test_a_seed_that_never_ends_is_caught(tmp_path: Path) -> None:
    """An endless loop cannot report itself, so the hunt kills its process after a time limit."""
    copies = Copies(tmp_path)
    root = copies.with_mutant(
        a_mutant("raft/core/leader.py", "if not positions:", "while True:\n        pass\n    if False:")
    )

    outcomes = Workers(seed_seconds_max=4).run_seeds(root, 1, 2, hash_seed=1)

    assert [(outcome.seed, outcome.rule) for outcome in outcomes] == [(1, HANGS)]


def test_a_worker_is_sure_that_it_runs_in_the_copy(tmp_path: Path) -> None:
    """If a package were imported from elsewhere, its mutants would never run, and so would survive."""
    copies = Copies(tmp_path)
    shutil.rmtree(copies.clean / "raft")  # Here Python finds the installed `raft`.

    with pytest.raises(WorkerFailed, match="AssertionError"):
        Workers().run_seeds(copies.clean, 1, 1, hash_seed=1)


def test_a_crash_at_start_is_no_catch_and_an_assertion_is() -> None:
    """If the code does not even start, the result says nothing about the checks."""

    def ended(rule: str | None, detail: str, commits: int) -> SeedOutcome:
        return SeedOutcome(seed=1, seconds=0.1, events=9, commits=commits, trace_hash="", rule=rule, detail=detail)

    escaped = "no exception leaves a node"
    assert not ended(None, "", 0).is_catch
    assert not ended(escaped, "NameError: x at log.py:3 term_at", 0).is_catch
    assert ended(escaped, "IndexError: x at log.py:3 term_at < core.py:9 step", 5).is_catch
    assert ended(escaped, "AssertionError: (3, 4) at log.py:3 term_at", 0).is_catch
    assert ended(escaped, "IndexError: x at log.py:3 term_at < core.py:9 step", 5).caught_by == (
        "IndexError at log.py:3 term_at"
    )
    assert ended("log matching", "n1", 0).caught_by == "log matching"


def test_the_command_lists_and_chooses() -> None:
    """An unknown name is bad input, and the error names the nearest known name."""
    listed = CliRunner().invoke(mutants, ["--list", "--json", "--only", "backs off"])
    assert listed.exit_code == 0
    assert [row["name"] for row in json.loads(listed.stdout)] == ["next_index never backs off"]

    assert "next_index never backs off" in CliRunner().invoke(mutants, ["--list"]).stdout
    with pytest.raises(BadInput, match="did you mean 'a vote is not persisted'"):
        choose(CATALOGUE, ["a vote is not persistent"])

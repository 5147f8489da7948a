"""Plays scenarios: the named scenarios in this package, and scenarios from other files."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

from harness.errors import BadInput
from harness.scenarios.cluster_stage import ClusterStage
from harness.scenarios.errors import Broken, Mismatch
from harness.scenarios.expectations import expect
from harness.scenarios.language import LEVELS, Run, Scenario, Step, parse
from harness.scenarios.verbs import ACTIONS, make_stage
from raft import Acknowledge, ProtocolError

FOLDER = Path(__file__).parent / "plays"
SUFFIX = ".scenario"
OPENING = ("levels", "cluster", "log", "term", "vote")


def named_scenarios() -> dict[str, Path]:
    """Return the paths of the scenarios in this package, by name."""
    return {path.stem: path for path in sorted(FOLDER.glob(f"*{SUFFIX}"))}


def load(name: str) -> Scenario:
    """Return a scenario by its name, or by the path of a file. Raises BadInput, BadScenario."""
    named = named_scenarios()
    path = named.get(name, Path(name))
    if name not in named and not (path.is_file() and (path.suffix == SUFFIX or "/" in name)):
        nearest = get_close_matches(name, named, 1, 0.4)
        hint = f"did you mean {nearest[0]}?" if nearest else "`hwm-harness scenario --list` names them all"
        raise BadInput(f"there is no scenario or file {name}", hint)
    return load_file(path, shown=path.name if name in named else str(path))


def load_file(path: Path, *, shown: str) -> Scenario:
    """Return the scenario in a file. `shown`: the path of the file in messages. Raises BadInput, BadScenario."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read: {error}", "a scenario is a text file in UTF-8") from error
    return parse(path.stem, shown, text)


def play(scenario: Scenario) -> Iterator[tuple[Step, ClusterStage]]:
    """Carry out one step after the other, and yield after each step. Raises BadScenario, Mismatch, Broken.

    If the scenario has levels or endings, it is played once for each of them.
    """
    for run in scenario.runs():
        yield from play_run(run)


def play_run(run: Run) -> Iterator[tuple[Step, ClusterStage]]:
    """Like `play`, for one level and one ending."""
    stage, steps = make_stage(run.steps, LEVELS.get(run.level, Acknowledge.MAJORITY))
    if not any(step.verb == "expect" for step in steps):
        raise run.steps[-1].wrong("nothing is expected anywhere", "end with a line like `expect log s1 = 1 1`")
    for step in steps:
        verb = step.one_of(step.verb, (*ACTIONS, "expect", *OPENING), "verb")
        if verb == "expect":
            _expect(step, stage, run)
        elif verb in ACTIONS:
            _act(verb, step, stage)
        else:
            opening = ", ".join(OPENING)
            raise step.wrong(f"`{verb}` comes too late", f"{opening}: these lines are the first of a file")
        yield step, stage


def _expect(step: Step, stage: ClusterStage, run: Run) -> None:
    try:
        expect(step, stage)
    except Mismatch as error:
        if not run.words:
            raise
        text = f"{error.text} ({run.words})"
        raise Mismatch(error.path, error.line, text, error.expected, error.actual) from None


def _act(verb: str, step: Step, stage: ClusterStage) -> None:
    try:
        ACTIONS[verb](step, stage)
    except (AssertionError, ProtocolError) as error:
        raise Broken(step.path, step.line, step.text, f"{type(error).__name__}: {error}") from error


def play_to_the_end(scenario: Scenario) -> int:
    """Play a scenario, and return the number of expectations that held. Raises the errors of `play`."""
    return sum(1 for step, _ in play(scenario) if step.verb == "expect")

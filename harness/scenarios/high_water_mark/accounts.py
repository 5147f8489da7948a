"""Plays the accounts, and collects their pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from harness.errors import BadInput
from harness.scenarios.errors import BadScenario, Broken, Mismatch
from harness.scenarios.high_water_mark.picture import LogPicture, take_picture
from harness.scenarios.language import Run, Scenario
from harness.scenarios.play import SUFFIX, load_file, play_run

FOLDER = Path(__file__).parent / "accounts"

ALL = "all"
"""The word that stands for all accounts, or all levels."""

NAMES = ("leader-dies", "entry-is-cut", "ends-and-marks", "acks-1", "acks-all", "one-copy", "slow-follower")
"""The accounts in the order in which they are best read."""


@dataclass(frozen=True, slots=True)
class Part:
    """One run of an account. `beginning`: the pictures before the endings, if this is the first run at its level."""

    level: str
    ending: str  # Empty if the account has one ending only.
    beginning: tuple[LogPicture, ...]
    pictures: tuple[LogPicture, ...]
    expectations: int  # The number of expectations that held.
    problem: str | None  # The reason why the account did not end as expected; None if it did.


@dataclass(frozen=True, slots=True)
class Account:
    """An account that was played."""

    name: str
    title: str
    about: str
    parts: tuple[Part, ...]

    @property
    def held(self) -> bool:
        """True if the account ended as expected at every level."""
        return all(part.problem is None for part in self.parts)

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels at which the account was played, in the order of the file."""
        return tuple(dict.fromkeys(part.level for part in self.parts))

    def at(self, level: str) -> Iterator[Part]:
        """Return the parts that were played at this level."""
        return (part for part in self.parts if part.level == level)


def load_accounts(names: Sequence[str]) -> list[Scenario]:
    """Return the accounts with these names, or every account if one of the names is `all`.

    Raises BadInput, BadScenario.
    """
    found = []
    for name in NAMES if ALL in names else dict.fromkeys(names):
        if name not in NAMES:
            nearest = get_close_matches(name, (*NAMES, ALL), 1, 0.4)
            hint = f"did you mean {nearest[0]}?" if nearest else f"there are: {', '.join((*NAMES, ALL))}"
            raise BadInput(f"there is no account {name}", hint)
        found.append(load_file(FOLDER / f"{name}{SUFFIX}", shown=f"{name}{SUFFIX}"))
    return found


def play_account(scenario: Scenario) -> Account:
    """Play an account at all of its levels, with all of its endings. Raises BadScenario."""
    parts = tuple(_part(run) for run in scenario.runs())
    about = " ".join(line for line in scenario.about if line)
    return Account(scenario.name, scenario.title, about, parts)


def _part(run: Run) -> Part:
    pictures, expectations, problem = list[LogPicture](), 0, None
    common = sum(1 for step in run.steps[: run.common] if step.verb == "show")
    try:
        for step, stage in play_run(run):
            expectations += step.verb == "expect"
            if step.verb == "show":
                pictures.append(take_picture(stage, " ".join(step.words)))
    except BadScenario:
        raise
    except (Mismatch, Broken) as error:
        problem = str(error)
    beginning = tuple(pictures[:common]) if run.is_first else ()
    return Part(run.level, run.ending, beginning, tuple(pictures[common:]), expectations, problem)

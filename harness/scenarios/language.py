"""The text form of a scenario: one step per line; `#` begins a comment. The first comment is the scenario's title.

    cluster s1 s2 s3
    elect s1
    propose s1 x
    deliver s1>s2 append
    expect log s2 = 1 1

A scenario can be played several times. After a line `levels majority leader` before the first step, the scenario is
played at each of these acknowledgement levels. A step that begins with `at leader:` is carried out only at this level.
`ending TITLE` begins an ending. For each ending, the steps before the first ending are played, and then the steps of
this ending.

The modules `verbs` and `expectations` define the verbs and the expectations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from harness.core_host.message_names import NAMES, HeldMessage
from harness.scenarios.cluster_stage import ClusterStage
from harness.scenarios.errors import BadScenario
from raft import Acknowledge

ANY = "*"

LEVELS = {level.name.lower().replace("_", "-"): level for level in Acknowledge}
"""The levels of acknowledgement by their names in scenarios: none, leader, majority, in-sync."""

ENDINGS_MAX = 9
"""The most endings of a scenario. Each of them plays the steps before the first ending again."""


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a scenario. `line` counts from 1."""

    path: str
    line: int
    text: str
    verb: str
    words: tuple[str, ...]
    levels: tuple[str, ...] = ()  # The acknowledgement levels at which the step is carried out. Empty: all levels.

    def wrong(self, problem: str, hint: str) -> BadScenario:
        """Return an error that names this line."""
        return BadScenario(self.path, self.line, problem, hint)

    def word(self, place: int, what: str) -> str:
        """Return the word at `place` after the verb (0: the first).

        If this word is missing, raise BadScenario with `what`.
        """
        if place >= len(self.words):
            raise self.wrong(f"`{self.text}` lacks {what}", f"write it behind `{self.verb}`")
        return self.words[place]

    def number(self, word: str) -> int:
        """Return the word as a whole number, at least 0. Raises BadScenario if the word is no such number."""
        if not word.isdecimal():
            raise self.wrong(f"`{word}` is not a number", "write a whole number")
        return int(word)

    def no_more_than(self, count: int) -> None:
        """Raise BadScenario if more than `count` words follow the verb."""
        if len(self.words) > count:
            extra = " ".join(self.words[count:])
            raise self.wrong(f"`{self.text}` has too many words: {extra}", f"`{self.verb}` takes no more than {count}")

    def one_of(self, word: str, known: Iterable[str], what: str) -> str:
        """Return the word if it is known; otherwise raise BadScenario with the nearest known word."""
        names = list(known)
        if word in names:
            return word
        nearest = get_close_matches(word, names, 1, 0.5)
        hint = f"did you mean {nearest[0]}?" if nearest else f"there are: {', '.join(names)}"
        raise self.wrong(f"`{word}` is not a {what}", hint)

    def member(self, word: str, stage: ClusterStage) -> str:
        """Return the word if it names a member; otherwise raise BadScenario."""
        return self.one_of(word, stage.ids, "member")

    def members(self, words: Iterable[str], stage: ClusterStage) -> list[str]:
        """Return the members that the words name; `all` names every member. Raises BadScenario for any other word."""
        listed = list(words)
        if listed == ["all"]:
            return list(stage.ids)
        if not listed:
            raise self.wrong(f"`{self.text}` names no member", "name one or several, or `all`")
        return [self.member(word, stage) for word in listed]

    def letters(self, words: tuple[str, ...], stage: ClusterStage) -> Callable[[HeldMessage], bool]:
        """Return a function that returns True if a message matches the words.

        The first word is a link (`s1>s2`, `*>s2` or `s1>*`). The second word, if there is one, is a kind of message.
        Raises BadScenario for any other words.
        """
        if not words:
            raise self.wrong(f"`{self.text}` lacks a link", "write it as s1>s2, *>s2, s1>* or *>*")
        sender, arrow, to = words[0].partition(">")
        if not (sender and arrow and to):
            raise self.wrong(f"`{words[0]}` is not a link", "write it as s1>s2, *>s2, s1>* or *>*")
        for end in (sender, to):
            self.one_of(end, (*stage.ids, ANY), "member")
        kind = self.one_of(words[1], NAMES, "kind of message") if len(words) > 1 else None
        if len(words) > 2:
            raise self.wrong(f"`{' '.join(words[2:])}` is too much", "a link and one kind of message are enough")
        return lambda letter: (
            sender in (ANY, letter.sender) and to in (ANY, letter.to) and (kind is None or letter.is_a(kind))
        )


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario that was read from a file. `title`: the first line of its first comment."""

    name: str
    path: str
    title: str
    steps: tuple[Step, ...]
    levels: tuple[str, ...] = ()  # The levels at which the scenario is played; empty if it has no levels.
    about: tuple[str, ...] = ()  # The first comment without its first line.

    def runs(self) -> list[Run]:
        """Return the runs of the scenario: one for each level and each ending. Raises BadScenario."""
        starts = [place for place, step in enumerate(self.steps) if step.verb == "ending"]
        if len(starts) > ENDINGS_MAX:
            raise self.steps[starts[ENDINGS_MAX]].wrong(f"there are more than {ENDINGS_MAX} endings", "write two files")
        common = self.steps[: starts[0]] if starts else self.steps
        endings = [self.steps[start:end] for start, end in zip(starts, [*starts, None][1:], strict=True)]
        return [
            self._run(level, common, ending, is_first=number == 0)
            for level in self.levels or ("",)
            for number, ending in enumerate(endings or [()])
        ]

    def _run(self, level: str, common: tuple[Step, ...], ending: tuple[Step, ...], *, is_first: bool) -> Run:
        if ending:
            ending[0].word(0, "a title")
        at_level = [[step for step in part if not step.levels or level in step.levels] for part in (common, ending[1:])]
        return Run(
            level=level,
            ending=" ".join(ending[0].words) if ending else "",
            steps=tuple(at_level[0] + at_level[1]),
            common=len(at_level[0]) if ending else 0,
            is_first=is_first,
        )


@dataclass(frozen=True, slots=True)
class Run:
    """A scenario at one level, with one ending."""

    level: str  # Empty if the scenario has no levels.
    ending: str  # The title of the ending. Empty if the scenario has one ending only.
    steps: tuple[Step, ...]
    common: int  # The number of steps before the endings; 0 if the scenario has one ending only.
    is_first: bool  # True for the first run at its level.

    @property
    def words(self) -> str:
        """The level and the ending of this run as text, if the scenario has levels or endings."""
        return ", ".join([*([f"level {self.level}"] if self.level else []), *([self.ending] if self.ending else [])])


def parse(name: str, path: str, text: str) -> Scenario:
    """Read a scenario. Raises BadScenario if the scenario has no step, or if its levels are not valid."""
    steps, comments, begun = [], list[str](), False
    for number, raw in enumerate(text.splitlines(), start=1):
        content, sharp, comment = raw.partition("#")
        words = content.split()
        if words:
            begun = True
            steps.append(_step(path, number, words))
        elif sharp and not begun:
            comments.append(comment.strip())
    levels: tuple[str, ...] = ()
    if steps and steps[0].verb == "levels":
        first = steps.pop(0)
        first.word(0, "a level")
        levels = tuple(dict.fromkeys(first.one_of(word, LEVELS, "level") for word in first.words))
    for step in steps:
        for level in step.levels:
            step.one_of(level, levels, "level of this scenario")
    if not steps:
        raise BadScenario(path, 1, "there is no step in this file", "begin with a line like `cluster s1 s2 s3`")
    return Scenario(name, path, comments[0] if comments else name, tuple(steps), levels, tuple(comments[1:]))


def _step(path: str, number: int, words: list[str]) -> Step:
    text = " ".join(words)
    levels: tuple[str, ...] = ()
    if words[0] == "at":
        end = next((place for place, word in enumerate(words) if word.endswith(":")), 0)
        levels = tuple(word.strip(",:") for word in words[1 : end + 1])
        if not end or not words[end + 1 :] or "" in levels:
            raise BadScenario(path, number, f"`{text}` has no level or no step", "write `at leader: STEP`")
        words = words[end + 1 :]
    return Step(path, number, text, words[0], tuple(words[1:]), levels)

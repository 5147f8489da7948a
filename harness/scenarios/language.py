"""The text form of a scenario: one step per line; `#` begins a comment. The first comment is the scenario's title.

    cluster s1 s2 s3
    elect s1
    propose s1 x
    deliver s1>s2 append
    expect log s2 = 1 1

The module `verbs` has the verbs, and the module `expectations` has the expectations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from harness.core_host.message_names import NAMES, HeldMessage
from harness.scenarios.cluster_stage import ClusterStage
from harness.scenarios.errors import BadScenario

ANY = "*"


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a scenario. `line` counts from 1."""

    path: str
    line: int
    text: str
    verb: str
    words: tuple[str, ...]

    def wrong(self, problem: str, hint: str) -> BadScenario:
        """Return an error that names this line."""
        return BadScenario(self.path, self.line, problem, hint)

    def word(self, place: int, what: str) -> str:
        """Return the word at `place` after the verb (0: the first). If it is missing, raise BadScenario with `what`."""
        if place >= len(self.words):
            raise self.wrong(f"`{self.text}` lacks {what}", f"write it behind `{self.verb}`")
        return self.words[place]

    def number(self, word: str) -> int:
        """Return the word as a whole number, at least 0. Raises BadScenario if it is no such number."""
        if not word.isdecimal():
            raise self.wrong(f"`{word}` is no number", "write a whole number")
        return int(word)

    def no_more_than(self, count: int) -> None:
        """Raise BadScenario if more than `count` words follow the verb."""
        if len(self.words) > count:
            extra = " ".join(self.words[count:])
            raise self.wrong(f"`{self.text}` has too many words: {extra}", f"`{self.verb}` takes no more than {count}")

    def one_of(self, word: str, known: Iterable[str], what: str) -> str:
        """Return the word if it is known, and else raise BadScenario with the nearest known word."""
        names = list(known)
        if word in names:
            return word
        nearest = get_close_matches(word, names, 1, 0.5)
        hint = f"did you mean {nearest[0]}?" if nearest else f"there are: {', '.join(names)}"
        raise self.wrong(f"`{word}` is no {what}", hint)

    def member(self, word: str, stage: ClusterStage) -> str:
        """Return the word if it names a member, and else raise BadScenario."""
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
        """Return a function that tells whether a message matches the words.

        The first word is a link (`s1>s2`, `*>s2` or `s1>*`). The second word, if there is one, is a kind of message.
        Raises BadScenario for any other words.
        """
        if not words:
            raise self.wrong(f"`{self.text}` lacks a link", "write it as s1>s2, *>s2, s1>* or *>*")
        sender, arrow, to = words[0].partition(">")
        if not (sender and arrow and to):
            raise self.wrong(f"`{words[0]}` is no link", "write it as s1>s2, *>s2, s1>* or *>*")
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


def parse(name: str, path: str, text: str) -> Scenario:
    """Read a scenario. Raises BadScenario if it has no step."""
    steps, comments, begun = [], list[str](), False
    for number, raw in enumerate(text.splitlines(), start=1):
        content, sharp, comment = raw.partition("#")
        words = content.split()
        if words:
            begun = True
            steps.append(Step(path, number, " ".join(words), words[0], tuple(words[1:])))
        elif sharp and not begun:
            comments.append(comment.strip())
    if not steps:
        raise BadScenario(path, 1, "there is no step in this file", "begin with a line like `cluster s1 s2 s3`")
    return Scenario(name, path, comments[0] if comments else name, tuple(steps))

"""Replays a path that a search has found, and describes it line by line.

The search itself renames members, numbers states and computes each local step only once. The replay does none of this:
it carries out the whole path on fresh production cores with fixed names, so every printed event has really happened.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.core_host.member import CoreHost
from harness.core_host.message_names import describe
from harness.model_check.local_states import (
    CRASH,
    DELIVER,
    HEARTBEAT,
    LOSE_LEADER,
    LOSE_QUORUM,
    PROPOSE,
    READ,
    SYNC,
    TIME_OUT,
    Envelope,
    LocalStates,
)
from harness.model_check.normalize import normalize
from harness.model_check.search import ModelEvent, Search
from harness.model_check.state_key import StateKey, state_key
from raft import ProtocolError

Key = tuple[int, int, StateKey]
"""The identity of a message: (place of the sender, place of the receiver, key of the content). For the search, two
messages that differ only in fields without effect are the same message.
"""


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """One event as text: the member, the event, the messages that the member sent, and its state after the event."""

    node_id: str
    event: str
    sent: tuple[str, ...]
    state: str

    def __str__(self) -> str:
        sent = "".join(f"\n{'':>10}→ {letter}" for letter in self.sent)
        return f"{self.node_id:<4}{self.event:<52} {self.state}{sent}"


def replay(search: Search) -> list[ReplayStep]:
    """Return the events of the path to the violation, including the event that breaks the rule."""
    return PathReplay(search).lines(search.found.path)


class PathReplay:
    """Fresh members on which a path is carried out."""

    def __init__(self, search: Search) -> None:
        self._atlas: LocalStates = search.states
        self._bounds = search.bounds
        node_ids = self._atlas.renamings.node_ids
        self.members = [self._atlas.first_member(node_id) for node_id in node_ids]
        self._under_way: dict[Key, Envelope] = {}

    def lines(self, path: list[tuple[ModelEvent, int]]) -> list[ReplayStep]:
        """Carry out a path from the very first start. Returns one ReplayStep per event."""
        renamings = self._atlas.renamings
        lines = []
        places = renamings.all[0]  # At first all members are equal, so any assignment of places is right.
        for event, renaming in path:
            lines.append(self._line(event, places))
            after = renamings.all[renaming]
            places = tuple(places[after.index(place)] for place in range(len(places)))
        return lines

    def _line(self, event: ModelEvent, places: tuple[int, ...]) -> ReplayStep:
        """Carry out one event. `places[i]`: the index in `members` of the member with place i in the search."""
        place = places[event.place]
        node_ids = self._atlas.renamings.node_ids
        letter = self._under_way[self._key(event.argument, places)] if event.kind == DELIVER else None
        member = self.members[place]
        words = _words(event, letter, node_ids)
        try:
            member = self.members[place] = self._atlas.happen(member, event.kind, event.argument, letter)
        except (AssertionError, ProtocolError) as error:
            return ReplayStep(member.node_id, words, (), f"an invariant of the core does not hold: {error!r}")
        sent = [Envelope(place, node_ids.index(to), message) for to, message in member.take_sent()]
        for each in sent:
            self._under_way[each.sender, each.to, state_key(each.message)] = each
        kept = {self._key(number, places) for number in event.kept}
        self._under_way = {key: each for key, each in self._under_way.items() if key in kept}
        normalize(member)
        return ReplayStep(member.node_id, words, tuple(self._told(each) for each in sent), _state(member))

    def _told(self, letter: Envelope) -> str:
        is_lost = (letter.sender, letter.to, state_key(letter.message)) not in self._under_way
        node_id = self._atlas.renamings.node_ids[letter.to]
        return f"{node_id}: {describe(letter.message)}{' (lost)' if is_lost else ''}"

    def _key(self, number: int, places: tuple[int, ...]) -> Key:
        """Return the key of a message of the search, with the places of its sender and receiver in `members`."""
        letter = self._atlas.letters[number]
        return places[letter.sender], places[letter.to], state_key(letter.message)


def _words(event: ModelEvent, letter: Envelope | None, node_ids: tuple[str, ...]) -> str:
    if letter is not None:
        return f"hears from {node_ids[letter.sender]}: {describe(letter.message)}"
    return {
        TIME_OUT: "its election timer fires, and its pre-votes are granted",
        HEARTBEAT: "its heartbeat is due",
        LOSE_LEADER: "its leader's connections end, and it asks for pre-votes early",
        LOSE_QUORUM: "has heard no quorum for too long",
        PROPOSE: "takes a command",
        READ: "is asked for a linearizable read",
        SYNC: "its oldest write is durable",
        CRASH: f"crashes and is back; {event.argument} of its unsynced writes survived",
    }[event.kind]


def _state(member: CoreHost) -> str:
    core = member.core
    log = " ".join(str(entry.term) for entry in member.disk.appended.entries)
    unsynced = f", {len(member.disk.unsynced)} unsynced" if member.disk.unsynced else ""
    role = f"{core.role.value} of term {core.term}"
    return f"{role}, vote {core.voted_for}, log [{log}], commit {core.commit_index}{unsynced}"

"""The local states of members, the messages, and the local steps. The production core computes each local step once.

A local state is the state of one member with its disk. An event changes only one member, and a member has far fewer
states than a cluster. So local states and messages have numbers, and the core computes one step for each (local state,
event). A step of the cluster is then a table look-up. If several local states differ only by a renaming of the members,
the core computes the steps of only one of these states. Renaming gives the steps of the others.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import NamedTuple

from harness.core_host.disk import Disk, Image
from harness.core_host.member import CoreHost, NoSpread
from harness.model_check.bounds import Bounds
from harness.model_check.normalize import CONFIG, SILENCE_NS, normalize
from harness.model_check.state_key import StateKey, rename, state_key
from harness.model_check.symmetry import Renamings
from raft import Entry, Message, PreVoteRequest, PreVoteResponse, ProtocolError, Role, VoteRequest, VoteResponse

DELIVER, TIME_OUT, HEARTBEAT, LOSE_QUORUM, PROPOSE, READ, SYNC, CRASH, LOSE_LEADER = range(9)

Notes = tuple[tuple[str, int, object], ...]


class Outcome(NamedTuple):
    """The result of one event on one member."""

    state: int
    sent: tuple[int, ...]  # The numbers of the messages that the member has sent.
    notes: Notes  # Facts for the ghost state, each as (kind of fact, number, value).
    violation: tuple[str, str] | None  # The broken rule: (rule, detail).


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about one member that the rules need."""

    role: Role
    term: int
    durable_term: int
    log: tuple[int, ...]  # The terms of the entries.
    durable_log: tuple[int, ...]
    commit_index: int
    last_applied: int
    unsynced: int
    follows: bool  # True if the member is a follower that knows its leader.


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message in flight. `sender` and `to` are places of members (`symmetry`)."""

    sender: int
    to: int
    message: Message


class LocalStates:
    """Numbers the local states and the messages, and keeps the table of steps."""

    def __init__(self, bounds: Bounds) -> None:
        self.renamings = Renamings(bounds.members, symmetry=bounds.symmetry)
        self._with_pre_votes = bounds.pre_votes
        self.place: list[int] = []  # For each state, the place of the member that is in this state.
        self.facts: list[Facts] = []
        # The images of each state, which are the states that result from it by renaming members.
        self.images: list[tuple[int, ...]] = []
        # The least number among the images of each state. States that are images of each other have the same least
        # number.
        self.orbit: list[int] = []
        # Each message that was sent, by its number. `letter_images` has the images of these messages.
        self.letters: list[Envelope] = []
        self.letter_images: list[tuple[int, ...]] = []
        self.steps_run = 0  # How many steps the production core has carried out.
        self._numbers: dict[StateKey, int] = {}
        # For each state, the pickled member; None if a pickled member is stored for an image of the state instead.
        self._stored: list[bytes | None] = []
        # For each state: (a stored state, the renaming that turns the stored state into this one).
        self._origin: list[tuple[int, int]] = []
        self._letter_numbers: dict[StateKey, int] = {}
        self._outcomes: list[dict[tuple[int, int], Outcome]] = []

    def first_states(self) -> list[int]:
        """Return the numbers of all members' states at their very first start."""
        node_ids = self.renamings.node_ids
        return [self._number_of(self.first_member(node_id)) for node_id in node_ids]

    def first_member(self, node_id: str) -> CoreHost:
        """Return a member at its very first start."""
        return self._start(node_id, Disk(Image()))

    def outcome(self, state: int, kind: int, argument: int) -> Outcome:
        """Return the outcome of an event of this kind for a member in this state.

        `argument`: for DELIVER the number of the message, for CRASH how many unsynced writes survive, for READ the
        ticket; for all other kinds 0.
        """
        known = self._outcomes[state].get((kind, argument))
        if known is None:
            known = self._outcomes[state][kind, argument] = self._find_outcome(state, kind, argument)
        return known

    def _find_outcome(self, state: int, kind: int, argument: int) -> Outcome:
        stored = self._stored[state]
        if stored is not None:
            return self._run(state, stored, kind, argument)
        origin, renaming = self._origin[state]
        if kind == DELIVER:
            argument = self.letter_images[argument][self.renamings.inverse[renaming]]
        return self._renamed(self.outcome(origin, kind, argument), renaming)

    def _renamed(self, outcome: Outcome, renaming: int) -> Outcome:
        places = self.renamings.all[renaming]
        notes = tuple(
            (what, number, places[value] if what == "vote" and isinstance(value, int) else value)
            for what, number, value in outcome.notes
        )
        sent = tuple(self.letter_images[letter][renaming] for letter in outcome.sent)
        return Outcome(self.images[outcome.state][renaming], sent, notes, outcome.violation)

    # The methods below run the production core.

    def _run(self, state: int, stored: bytes, kind: int, argument: int) -> Outcome:
        self.steps_run += 1
        member: CoreHost = pickle.loads(stored)
        before, place = self.facts[state], self.place[state]
        try:
            letter = self.letters[argument] if kind == DELIVER else None
            member = self.happen(member, kind, argument, letter)
        except (AssertionError, ProtocolError) as error:
            return Outcome(state, (), (), ("an invariant of the core", f"{member.node_id}: {error!r}"))
        notes, sent = self._notes(member, before), []
        for to, message in member.take_sent():
            receiver = self.renamings.node_ids.index(to)
            sent.append(self._letter_number(Envelope(place, receiver, message)))
            if isinstance(message, VoteRequest):
                notes.append(("vote", message.term, place))
            elif isinstance(message, VoteResponse) and message.granted:
                notes.append(("vote", message.term, receiver))
        notes += [("read", ticket, member.core.last_applied) for ticket in member.reads_ready]
        notes += [("read failed", ticket, None) for ticket in member.reads_failed]
        member.events, member.applied, member.reads_ready, member.reads_failed = [], [], [], []
        after = self._number_of(member)
        violation = self._broken(before, self.facts[after], kind)
        return Outcome(after, tuple(sorted(set(sent))), tuple(notes), violation)

    def happen(self, member: CoreHost, kind: int, argument: int, letter: Envelope | None) -> CoreHost:
        """Carry out one event on a member, and return the member. After a crash, this is a new, restarted member."""
        if kind == LOSE_LEADER:
            member.lose_leader()
            self._grant_pre_votes(member)
        elif letter is not None:
            member.step(self.renamings.node_ids[letter.sender], letter.message)
        elif kind == TIME_OUT:
            self._campaign(member)
        elif kind == LOSE_QUORUM:
            member.tick(SILENCE_NS)
        elif kind == HEARTBEAT:
            member.tick(CONFIG.heartbeat_interval_ns)
        elif kind == PROPOSE:
            member.propose("x")
        elif kind == READ:
            member.read(argument)
        elif kind == SYNC:
            member.sync_oldest()
        else:
            assert kind == CRASH, kind
            member = self._start(member.node_id, member.disk.after_crash(argument))
        return member

    def _campaign(self, member: CoreHost) -> None:
        """Let the election timer fire. Unless pre-votes are explored, the member becomes a candidate at once."""
        member.tick(SILENCE_NS)
        self._grant_pre_votes(member)

    def _grant_pre_votes(self, member: CoreHost) -> None:
        if self._with_pre_votes:
            return
        term = member.core.term
        for peer_id in self.renamings.node_ids:
            if member.core.role is Role.PRE_CANDIDATE and peer_id != member.node_id:
                member.step(peer_id, PreVoteResponse(term=term, next_term=term + 1, granted=True))
        member.sent = [(to, message) for to, message in member.sent if not isinstance(message, PreVoteRequest)]

    def _start(self, node_id: str, disk: Disk) -> CoreHost:
        return CoreHost(node_id, self.renamings.node_ids, disk, config=CONFIG, random=NoSpread())

    def _notes(self, member: CoreHost, before: Facts) -> list[tuple[str, int, object]]:
        core, notes = member.core, list[tuple[str, int, object]]()
        if core.role is Role.LEADER and (before.role is not Role.LEADER or before.term != core.term):
            notes.append(("leader", core.term, None))
        if core.commit_index > before.commit_index:
            notes.append(("commit", core.term, _terms(member.disk.appended.entries[: core.commit_index])))
            notes.append(("as leader", int(core.role is Role.LEADER), None))
        return notes

    def _broken(self, before: Facts, after: Facts, kind: int) -> tuple[str, str] | None:
        """Check the rules about one member. Returns the broken rule as (rule, detail); None if all rules hold.

        Assertions in the core check further rules.
        """
        crashed = kind == CRASH
        if kind == LOSE_LEADER and self._with_pre_votes and after.term != before.term:
            return "the loss of a leader's connection moves no term", f"{before.term}, then {after.term}"
        if after.durable_term < before.durable_term:
            return "terms never go back", f"{before.durable_term} was durable, {after.durable_term} is"
        if not crashed and after.term < before.term:
            return "terms never go back", f"{before.term}, then {after.term}"
        if not 0 <= after.last_applied <= after.commit_index <= len(after.log):
            return (
                "applied, committed and last are in order",
                f"{after.last_applied}, {after.commit_index}, {after.log}",
            )
        if after.last_applied > len(after.durable_log):
            return "applied means durable here", f"{after.last_applied} applied, {len(after.durable_log)} durable"
        if not crashed and after.commit_index < before.commit_index:
            return "in one life the marks only rise", f"commit {before.commit_index}, then {after.commit_index}"
        return None

    # Numbers

    def _number_of(self, member: CoreHost) -> int:
        normalize(member)
        drawn = state_key(member)
        number = self._numbers.get(drawn)
        if number is None:
            number = self._add(drawn, member)
        return number

    def _add(self, drawn: StateKey, member: CoreHost) -> int:
        """Give a number to this new state, and to each of its images that has no number yet."""
        place = self.renamings.node_ids.index(member.node_id)
        facts = facts_of(member)
        numbers: list[int] = []
        for renaming, names in enumerate(self.renamings.names):
            image = rename(drawn, names) if renaming else drawn
            number = self._numbers.get(image)
            if number is None:
                number = self._numbers[image] = len(self.place)
                self.place.append(self.renamings.all[renaming][place])
                self.facts.append(facts)
                self._stored.append(pickle.dumps(member, pickle.HIGHEST_PROTOCOL) if renaming == 0 else None)
                self._origin.append((numbers[0] if numbers else number, renaming))
                self._outcomes.append({})
                self.images.append(())
                self.orbit.append(0)
            numbers.append(number)
        _link_images(self.renamings, numbers, self.images)
        for number in numbers:
            self.orbit[number] = min(numbers)
        return numbers[0]

    def _letter_number(self, letter: Envelope) -> int:
        drawn = state_key(letter.message)
        number = self._letter_numbers.get((letter.sender, letter.to, drawn))
        if number is not None:
            return number
        numbers: list[int] = []
        for places in self.renamings.all:
            image = Envelope(places[letter.sender], places[letter.to], letter.message)
            key = (image.sender, image.to, drawn)
            if key not in self._letter_numbers:
                self._letter_numbers[key] = len(self.letters)
                self.letters.append(image)
                self.letter_images.append(())
            numbers.append(self._letter_numbers[key])
        _link_images(self.renamings, numbers, self.letter_images)
        return numbers[0]


def _link_images(renamings: Renamings, numbers: list[int], images: list[tuple[int, ...]]) -> None:
    """Set `images` for a state and all its images. `numbers[p]`: the number of the state's image under renaming p."""
    for first, number in enumerate(numbers):
        back = renamings.inverse[first]
        images[number] = tuple(numbers[renamings.after(again, first)] for again in range(len(numbers)))
        assert images[number][back] == numbers[0], (number, numbers)


def _terms(entries: tuple[Entry, ...]) -> tuple[int, ...]:
    return tuple(entry.term for entry in entries)


def facts_of(member: CoreHost) -> Facts:
    """Return the facts about a member that the rules need."""
    core, disk = member.core, member.disk
    return Facts(
        role=core.role,
        term=core.term,
        durable_term=disk.durable.hard_state.term,
        log=_terms(disk.appended.entries),
        durable_log=_terms(disk.durable.entries),
        commit_index=core.commit_index,
        last_applied=core.last_applied,
        unsynced=len(disk.unsynced),
        follows=core.role is Role.FOLLOWER and core.leader_id is not None,
    )

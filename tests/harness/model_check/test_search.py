"""Exhaustive mode: small worlds are searched fully, no rule is broken in these worlds, and deliberate bugs are
found."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

import harness.model_check.local_states
import raft.core.elections
import raft.core.leader
import raft.core.log
import raft.core.outbox
import raft.core.raft
import raft.core.state
import raft.core.write_stream
import raft.membership.quorum
from harness.cli import main
from harness.model_check.bounds import Bounds
from harness.model_check.replay_path import PathReplay, replay
from harness.model_check.search import Search
from harness.model_check.state_key import state_key
from raft import AppendAccepted, HardState, LogWrite, Message

TINY = Bounds(terms=1, entries=0, crashes=0, in_flight=1, heartbeats=1)
SETTLED = Bounds(terms=2, entries=1, crashes=0, in_flight=1, elected=True)

LOSING = Bounds(terms=2, entries=0, crashes=0, in_flight=1, elected=True, hints=1, pre_votes=True)

WORLDS = {
    "a leader whose connections end": LOSING,
    "a first election with a crash": Bounds(terms=1, entries=0, crashes=1, in_flight=1),
    "pre-votes as messages": Bounds(terms=1, entries=0, crashes=0, in_flight=1, pre_votes=True),
    "a command and a second leader": Bounds(terms=2, entries=1, crashes=0, in_flight=1, elected=True),
    "a second leader and a crash": Bounds(terms=2, entries=0, crashes=1, in_flight=1, elected=True),
    "a read and a second leader": Bounds(terms=2, entries=0, crashes=0, reads=1, in_flight=1, elected=True),
    "two members": Bounds(members=2, terms=2, entries=1, crashes=1, in_flight=1, elected=True),
}


def searched(bounds: Bounds) -> Search:
    search = Search(bounds)
    for _ in search.run():
        pass
    return search


@pytest.mark.timeout(60)
@pytest.mark.parametrize("bounds", WORLDS.values(), ids=WORLDS.keys())
def test_a_small_world_is_exhausted_and_every_rule_holds_in_it(bounds: Bounds) -> None:
    found = searched(bounds).found

    assert found.violation is None
    assert found.exhausted
    assert found.frontier == 0
    assert found.states == sum(found.levels) > 500


def committing(
    patch: pytest.MonkeyPatch, *, old_terms: bool, own_index: Callable[[raft.core.log.RaftLog], int]
) -> None:
    """Patch the leader to commit an entry too early. The leader then continues as usual."""
    advance_commit = raft.core.leader.Leader.advance_commit

    def too_early(self: raft.core.leader.Leader) -> None:
        state = self._state
        agreed = self._quorum_value(own_index(state.log), [peer.match_index for peer in self.peers.values()])
        if agreed > state.commit_index and (old_terms or state.log.term_at(agreed) == state.term):
            state.commit_to(agreed)
        advance_commit(self)

    patch.setattr(raft.core.leader.Leader, "advance_commit", too_early)


def counting_copies(patch: pytest.MonkeyPatch) -> None:
    """Raft §5.4.2: entries of old terms commit as soon as a majority holds them."""
    committing(patch, old_terms=True, own_index=lambda log: log.durable_index)


def counting_what_is_not_durable(patch: pytest.MonkeyPatch) -> None:
    """The leader counts its own copy before the copy is on its disk.

    See docs/reference/specification.md#32-copies-count-when-durable.
    """
    committing(patch, old_terms=False, own_index=lambda log: log.last_index)


def forgetting_votes(patch: pytest.MonkeyPatch) -> None:
    """A voter does not write its vote to disk."""
    take = raft.core.write_stream.WriteStream.take

    def without_vote(self: raft.core.write_stream.WriteStream, hard_state: HardState | None) -> LogWrite | None:
        return take(self, hard_state and replace(hard_state, voted_for=None))

    patch.setattr(raft.core.write_stream.WriteStream, "take", without_vote)


def acknowledging_early(patch: pytest.MonkeyPatch) -> None:
    """A follower's acknowledgement does not wait for its disk."""
    send = raft.core.outbox.Outbox.send

    def at_once(self: raft.core.outbox.Outbox, peer_id: str, message: Message, *, after: int = 0) -> None:
        send(self, peer_id, message, after=0 if isinstance(message, AppendAccepted) else after)

    patch.setattr(raft.core.outbox.Outbox, "send", at_once)


def voting_for_anybody(patch: pytest.MonkeyPatch) -> None:
    """A voter ignores Raft §5.4.1."""
    patch.setattr(raft.core.elections.Elections, "_is_up_to_date", lambda *_: True)


def taking_half_for_a_majority(patch: pytest.MonkeyPatch) -> None:
    """Half of an even number of members counts as a majority."""
    patch.setattr(raft.core.leader, "majority_index", lambda given: sorted(given, reverse=True)[(len(given) - 1) // 2])


def reading_too_early(patch: pytest.MonkeyPatch) -> None:
    """Thesis §6.4: the leader answers reads before it has committed an entry of its own term."""
    patch.setattr(raft.core.leader.Leader, "_has_committed_in_its_term", property(lambda _: True))


def applying_what_is_not_durable(patch: pytest.MonkeyPatch) -> None:
    """An entry is applied as soon as it is committed, even if it is not durable on this member.

    See docs/reference/specification.md#32-copies-count-when-durable.
    """
    note_work = raft.core.raft.RaftCore._note_work

    def with_all_that_is_committed(core: raft.core.raft.RaftCore) -> None:
        note_work(core)
        core.appliable_index = core.commit_index
        core.has_effects |= core._handed_out_index == core.last_applied < core.commit_index

    patch.setattr(raft.core.raft.RaftCore, "_note_work", with_all_that_is_committed)


Bug = Callable[[pytest.MonkeyPatch], None]
DURABLE = "committed means durable on a majority"

BUGS: list[tuple[Bug, str, Bounds]] = [
    (counting_copies, "a leader commits only behind an entry of its own term", SETTLED),
    (forgetting_votes, "one vote per term, across crashes", replace(SETTLED, entries=0, crashes=1)),
    (acknowledging_early, DURABLE, replace(SETTLED, terms=1)),
    (counting_what_is_not_durable, DURABLE, replace(SETTLED, terms=1)),
    (voting_for_anybody, "leader completeness", SETTLED),
    (taking_half_for_a_majority, DURABLE, replace(SETTLED, members=2, terms=1)),
    (applying_what_is_not_durable, "applied means durable here", replace(SETTLED, terms=1, in_flight=2)),
    (reading_too_early, "a read sees what was committed before it", replace(SETTLED, reads=1)),
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("bug", "rule", "bounds"), BUGS, ids=lambda part: getattr(part, "__name__", ""))
def test_a_deliberate_bug_is_found_with_a_path_that_really_happens(
    bug: Bug, rule: str, bounds: Bounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps of a path are carried out on fresh cores: `retrace` asserts that each message of the path was really
    sent."""
    bug(monkeypatch)

    search = searched(bounds)

    assert search.found.violation is not None
    assert search.found.violation.rule == rule
    assert len(replay(search)) == len(search.found.path) > search.found.depth


def test_an_invariant_of_the_core_that_breaks_is_a_violation_with_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The core's own assertions count as rules, too."""

    def follow(self: raft.core.state.CoreState, leader_id: str | None) -> None:
        assert leader_id != self.node_id, "on purpose"

    monkeypatch.setattr(raft.core.state.CoreState, "follow", follow)

    search = searched(TINY)

    assert search.found.violation is not None
    assert "on purpose" in search.found.violation.detail
    assert "on purpose" in str(replay(search)[-1])


def test_a_renaming_changes_nothing_but_names() -> None:
    """With symmetry, the search leaves out a state that differs from another state only in names. If the left-out
    states are counted, the number of states is the same as without symmetry."""
    with_symmetry, without = searched(TINY), searched(replace(TINY, symmetry=False))

    assert sum(with_symmetry.images_of(number) for number in range(with_symmetry.found.states)) == without.found.states
    assert with_symmetry.found.depth == without.found.depth
    assert with_symmetry.found.states < without.found.states / 3


def test_a_path_through_the_table_is_a_path_of_the_production_core() -> None:
    """The search looks up the steps of members in a table. A replay carries out the same steps on real members, without
    the table. The test replays the paths to some forty states."""
    search = searched(SETTLED)

    for number in range(0, search.found.states, search.found.states // 40):
        replaying = PathReplay(search)
        replaying.lines(search.path_to(number))
        real = [harness.model_check.local_states.facts_of(member) for member in replaying.members]
        assert Counter(real) == Counter(search.facts_of(number))


def test_a_field_that_the_core_gets_is_in_the_picture_at_once() -> None:
    """A state's key leaves out only fields that are listed by name, because any other field may influence what a member
    does."""
    search = Search(TINY)
    member = search.states.first_member("s1")
    before = state_key(member)

    vars(member.core)["_new_field"] = 1
    # Forget the known fields, so that the new field counts as a field of the class.
    harness.model_check.state_key._fields.clear()
    try:
        assert state_key(member) != before
    finally:
        harness.model_check.state_key._fields.clear()


def test_a_search_ends_at_each_of_its_bounds_and_says_so() -> None:
    by_depth, by_states, by_time = (
        searched(replace(TINY, depth=3)).found,
        searched(replace(TINY, states=10)).found,
        searched(replace(SETTLED, seconds=1e-9)).found,
    )

    assert (by_depth.depth, by_depth.stopped_by) == (3, "the bound of 3 events")
    assert by_states.stopped_by == "the bound of 10 states"
    assert by_time.stopped_by is not None
    for found in (by_depth, by_states, by_time):
        assert found.violation is None
        assert not found.exhausted
        assert found.frontier > 0


def run_command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["hwm-harness", "explore", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


def test_the_command_says_what_it_reached_and_what_it_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--terms", "1", "--entries", "0", "--crashes", "0", "--in-flight", "1")

    assert run_command(monkeypatch, *arguments) == 0
    words = capsys.readouterr().out
    assert run_command(monkeypatch, *arguments, "--json") == 0
    figures = json.loads(capsys.readouterr().out)

    assert "exhausted: every state" in words
    assert "left out:" in words
    assert figures["exhausted"]
    assert figures["states"] == sum(figures["levels"])
    assert figures["left_out"]


def test_the_command_prints_the_path_to_a_violation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    acknowledging_early(monkeypatch)

    exit_code = run_command(monkeypatch, "--elected", "--terms", "1", "--entries", "1", "--crashes", "0")

    said = capsys.readouterr().out
    assert exit_code == 3
    assert "takes a command" in said
    assert f"violated: {DURABLE}" in said


def test_the_loss_of_a_leaders_connection_that_moves_a_term_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thesis §9.6: a member that only suspects that its leader is gone asks for pre-votes first."""
    monkeypatch.setattr(raft.core.elections.Elections, "ask_for_pre_votes", lambda _: raft.membership.quorum.Tally.WON)

    violation = searched(LOSING).found.violation

    assert violation is not None
    assert violation.rule == "the loss of a leader's connection moves no term"

"""The rules for the cluster as a whole (Raft Figure 3), and the facts that these rules must remember.

Every check is incremental. Log matching needs no hash chain. If all entries ever written with the same (index, term)
have the same (previous term, kind, payload), then, by induction, two logs that share an (index, term) are equal up to
that index.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from harness.sim.checks.membership import ConfigurationHistory
from harness.sim.engine.errors import broken, require
from raft import Configuration, Entry, EntryKind, Member, batch_leader_time


class SafetyChecker:
    """Remembers the leaders, votes, committed entries and applied results that any member has shown."""

    def __init__(self, founding: Configuration | None = None) -> None:
        self.members = ConfigurationHistory(founding or Configuration.of([Member("s1")]), self.is_committed)
        # The (previous term, kind, payload) of each entry, by (index, term).
        self._written: dict[tuple[int, int], tuple[int, int, bytes]] = {}
        # The leader of each term, and the life in which it led.
        self._leaders: dict[int, tuple[str, int]] = {}
        self._votes: dict[tuple[str, int], str] = {}  # The candidate that got the vote, by (voter, term).
        self._committed: list[int] = [0]  # The term of each committed entry, by index; 0 is "before the log".
        self._committed_in: list[int] = [0]  # The term of the leader that committed each entry, by index.
        self._leader_time = 0  # The leader_time of the newest committed batch.
        self._results: dict[int, tuple[str, Sequence[Any]]] = {}
        self._hashes: dict[int, tuple[str, bytes]] = {}

    @property
    def commit_index(self) -> int:
        """The highest index that any member has committed."""
        return len(self._committed) - 1

    def committed_term(self, index: int) -> int:
        """The term of the committed entry at `index`."""
        return self._committed[index]

    def is_committed(self, index: int, term: int) -> bool:
        """True if the entry (index, term) is committed."""
        return index < len(self._committed) and self._committed[index] == term

    def wrote(self, node_id: str, entry: Entry, term_before: int) -> None:
        """Check log matching (Raft §5.3): entries with equal (index, term) are equal and have equal predecessors."""
        key = (entry.index, entry.term)
        value = (term_before, int(entry.kind), entry.payload)
        known = self._written.setdefault(key, value)
        if known is value:
            self.members.wrote(node_id, entry)
        else:
            require(known == value, "log matching", node_id, "wrote", value, "at", key, "where others have", known)

    def has_written(self, entry: Entry) -> bool:
        """True if a member wrote exactly this entry at its index and term."""
        known = self._written.get((entry.index, entry.term))
        return known is not None and known[1:] == (int(entry.kind), entry.payload)

    def payload_of(self, index: int, term: int) -> bytes:
        """The payload of the entry (index, term); b"" if no member wrote it."""
        known = self._written.get((index, term))
        return known[2] if known is not None else b""

    def leads(self, node_id: str, life: int, term: int) -> bool:
        """Check election safety (Raft §5.2): a term has at most one leader, which leads the term in only one process.

        Returns True if the leader is new.
        """
        known = self._leaders.get(term)
        if known is None:
            self._leaders[term] = (node_id, life)
            return True
        if known != (node_id, life):
            broken("election safety", f"term {term} has leaders {known} and {(node_id, life)}")
        return False

    def leader_of(self, term: int) -> str | None:
        """The leader of this term; None if the term had no leader."""
        known = self._leaders.get(term)
        return known[0] if known is not None else None

    def votes_for(self, candidate: str, term: int, voters: Iterable[str]) -> list[str]:
        """Return the members of `voters` that have voted for `candidate` in this term.

        The candidate is always counted as one of its voters: it need not send the vote for itself.
        """
        return [voter for voter in voters if voter == candidate or self._votes.get((voter, term)) == candidate]

    def voted(self, voter: str, term: int, candidate: str) -> None:
        """Check that a voter gives one vote per term, across crashes (Raft §5.2).

        The checker learns of votes from the grants and vote requests that a node sends.
        """
        known = self._votes.setdefault((voter, term), candidate)
        require(known == candidate, "one vote per term", f"{voter} voted for {known} and {candidate} in term {term}")

    def committed(self, node_id: str, index: int, term: int, leader_term: int) -> None:
        """Record that the leader of `leader_term` has committed the next entry. The caller has checked that a majority
        has the entry.
        """
        assert index == len(self._committed), (node_id, index, self.commit_index)
        require(term >= self._committed[-1], "committed terms never fall", node_id, index, term, self._committed[-1])
        self._committed.append(term)
        self._committed_in.append(max(leader_term, self._committed_in[-1]))
        self.members.reached(index, term)

    def committed_in(self, index: int) -> int:
        """Return the term of the leader that committed this entry."""
        return self._committed_in[index]

    def last_committed_before(self, leader_term: int) -> int:
        """Return the highest index that leaders of terms below `leader_term` have committed.

        The leader of `leader_term` must have the entry at this index (Raft §5.4).
        """
        index = self.commit_index
        while index and self._committed_in[index] >= leader_term:
            index -= 1
        return index

    def applied(self, node_id: str, entry: Entry, results: Sequence[Any]) -> bool:
        """Check state-machine safety (Raft §5.4.3): all members apply the same entry with the same results.

        Returns True if no member has applied the entry before.
        """
        require(
            self.is_committed(entry.index, entry.term),
            "state machine safety",
            f"{node_id} applied ({entry.index}, {entry.term}), committed up to {self.commit_index}",
        )
        known = self._results.get(entry.index)
        if known is None:
            self._results[entry.index] = (node_id, results)
            if entry.kind is not EntryKind.CONFIGURATION:
                self._follow_leader_time(entry)
            return True
        require(
            list(known[1]) == list(results),
            "state machine agreement",
            f"entry {entry.index} gave {known[1]} on {known[0]} and {results} on {node_id}",
        )
        return False

    def _follow_leader_time(self, entry: Entry) -> None:
        """Check that leader_time never falls. The caller passes each committed entry once and in order, except
        configurations.

        See docs/reference/specification.md#812-leader-time.
        """
        leader_time = batch_leader_time(entry.payload)
        if leader_time < self._leader_time:
            broken("leader_time never falls", f"{leader_time} at {entry.index}, {self._leader_time} before it")
        self._leader_time = leader_time

    def hashed(self, node_id: str, index: int, state_hash: bytes) -> None:
        """Check state-machine agreement: all members have equal states after the same entry."""
        known = self._hashes.setdefault(index, (node_id, state_hash))
        require(
            known[1] == state_hash,
            "state machine agreement",
            f"after entry {index} the state of {node_id} is {state_hash.hex()[:16]},",
            f"that of {known[0]} {known[1].hex()[:16]}",
        )

"""Cores that exchange messages without delay and have no clocks, for tests of several members."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from raft import (
    AppendEntries,
    ChangeRefusal,
    ChangeRefused,
    Configuration,
    Entry,
    EntryKind,
    Member,
    MembershipChange,
    Role,
)
from tests.raft.support.core_fixture import CONFIG, Bench


def members(*node_ids: str) -> tuple[Member, ...]:
    return tuple(Member(node_id) for node_id in node_ids)


def configuration(
    voters: Sequence[str], outgoing: Sequence[str] = (), learners: Sequence[str] = (), removed: Sequence[str] = ()
) -> Configuration:
    return Configuration(members(*voters), members(*outgoing), members(*learners), tuple(removed))


def describe(found: Configuration) -> tuple[str, str, str]:
    """The voters, the outgoing voters and the learners of a configuration."""
    return " ".join(found.voter_ids), " ".join(found.outgoing_ids), " ".join(found.learner_ids)


def adding(*node_ids: str) -> MembershipChange:
    return MembershipChange(add=members(*node_ids))


def promoting(*node_ids: str) -> MembershipChange:
    return MembershipChange(promote=node_ids)


def removing(*node_ids: str) -> MembershipChange:
    return MembershipChange(remove=node_ids)


class Group:
    """A group of cores. `voters` know each other from the beginning. `others` know the voters, but the voters do not
    know the members in `others` yet. The members in `silent` are cut off."""

    def __init__(self, voters: Sequence[str], others: Sequence[str] = ()) -> None:
        base = configuration(voters)
        self.benches = {
            node_id: Bench(node_id, configuration=base, seed=place)
            for place, node_id in enumerate([*voters, *others], start=1)
        }
        self.silent: set[str] = set()
        self.elect(voters[0])

    def __getitem__(self, node_id: str) -> Bench:
        return self.benches[node_id]

    @property
    def leader(self) -> Bench:
        leading = [bench for bench in self.benches.values() if bench.core.role is Role.LEADER]
        return max(leading, key=lambda bench: bench.core.term)

    def elect(self, node_id: str) -> None:
        """Make this member the leader. All members lose their leader, and this member campaigns first."""
        for bench in self.benches.values():
            if bench.core.leader_id is not None and bench.core.role is not Role.LEADER:
                bench.advance(CONFIG.election_timeout_min_ns)
        self[node_id].time_out()
        self.run()
        assert self[node_id].core.role is Role.LEADER, self[node_id].core

    def change(self, change: MembershipChange) -> None:
        self.leader.core.propose_change(change)
        self.leader.flush()

    def run(self) -> None:
        """Run until no work is left. Every disk syncs, and every message arrives, except messages from or to silent
        members."""
        is_moving = True
        while is_moving:
            is_moving = False
            for node_id, bench in self.benches.items():
                if node_id in self.silent:
                    bench.take_sent()
                    continue
                if bench.issued_sequence > bench.log_sequence_durable:
                    bench.persist()
                    is_moving = True
                for peer_id, message in bench.take_sent():
                    is_moving = True
                    if peer_id in self.benches and peer_id not in self.silent:
                        self[peer_id].step(node_id, message)

    def heartbeat(self) -> None:
        self.leader.heartbeat()
        self.run()


def role(member: Bench) -> Role:
    """The present role of a member."""
    return member.core.role


def entry_of(index: int, term: int, members: Configuration) -> Entry:
    return Entry(index, term, EntryKind.CONFIGURATION, members.encode())


def append_of(term: int, prev: tuple[int, int], *entries: Entry, commit_index: int = 0) -> AppendEntries:
    return AppendEntries(
        term=term,
        prev_index=prev[0],
        prev_term=prev[1],
        entries=entries,
        commit_index=commit_index,
        low_watermark=0,
        read_counter=0,
    )


def refusal(bench: Bench, change: object) -> ChangeRefusal:
    with pytest.raises(ChangeRefused) as caught:
        bench.core.propose_change(change)  # type: ignore[arg-type]
    return caught.value.reason


JOINT = configuration(["s1", "s4"], outgoing=["s1", "s2", "s3"])

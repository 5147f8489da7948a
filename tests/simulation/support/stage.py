"""A small running cluster on which a test tries a rule or a fault by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.sim.checks.member import MemberChecker
from harness.sim.checks.messages import check_promise
from harness.sim.engine.errors import Violation
from harness.sim.plan.plan import ALL_HEALED, MILLISECOND_NS
from harness.sim.simulation import Simulation
from harness.sim.world.member import SimMember
from raft import AppendEntries, Effects, Entry, EntryKind, Message, Node, Role, TraceEvent
from tests.simulation.support.plans import TIMERS, a_calm_plan

APPEND = AppendEntries(term=0, prev_index=0, prev_term=0, entries=(), commit_index=0, low_watermark=0, read_counter=0)


class Stage:
    """A quiet cluster of three members: a leader and its followers. All members have applied some committed entries."""

    def __init__(self) -> None:
        plan = a_calm_plan(members=3, heal=ALL_HEALED)
        load = replace(plan.load, with_service=False, clients=4, read_share=0.0, think_ns=20 * MILLISECOND_NS)
        self.world = world = Simulation(replace(plan, load=load, raft=TIMERS))
        for member in world.members.values():
            member.initialize()
            world.queue.at(0, member.boot)
        world.load.start()
        self.run(400)
        world.load.stop()
        self.run(100)
        members = sorted(world.members.values(), key=lambda member: self.node(member).core.role is not Role.LEADER)
        self.leader, self.follower, self.other = members
        core = self.node(self.leader).core
        assert core.role is Role.LEADER
        assert core.low_watermark == core.last_applied == core.last_index == world.safety.commit_index > 3
        self.term, self.index = core.term, core.last_index

    def run(self, milliseconds: int) -> None:
        queue = self.world.queue
        end = queue.now + milliseconds * MILLISECOND_NS
        while (due := queue.next_time()) is not None and due <= end:
            queue.step()

    @staticmethod
    def node(member: SimMember) -> Node:
        assert member.node is not None
        return member.node

    @staticmethod
    def checker(member: SimMember) -> MemberChecker:
        """The checker of the member's running process."""
        assert isinstance(member.checker, MemberChecker)
        return member.checker

    def show(self, member: SimMember, **changes: Any) -> None:
        """Check the member in the state after an event. The marks of the member are the true ones, except for those in
        `changes`."""
        names = ("term", "role", "commit_index", "last_applied", "first_index", "snapshot_index", "last_index")
        core = self.node(member).core
        shown = {name: getattr(core, name) for name in (*names, "durable_index", "low_watermark")} | changes
        member.checker.check(cast(Node, SimpleNamespace(core=SimpleNamespace(**shown), failure=None)))

    def has(self, member: SimMember, index: int, term: int, *, durable: bool) -> None:
        """Give this member one more entry."""
        for log in (member.logs.memory, member.logs.durable) if durable else (member.logs.memory,):
            assert log.last_index == index - 1
            log.terms.append(term)

    def commit(self, member: SimMember) -> None:
        """Let the member report the next entry as committed."""
        self.world.commitment.reached(member, self.index + 1)

    def leads_later(self, member: SimMember) -> None:
        """Let the member lead the next term."""
        member.node = cast(Node, SimpleNamespace(core=SimpleNamespace(role=Role.LEADER, term=self.term + 1)))

    def leads_without_the_last(self) -> None:
        del self.follower.logs.memory.terms[-1]
        self.show(self.follower, term=self.term + 1, role=Role.LEADER)

    def commits_without_a_later_leader(self) -> None:
        for member in (self.leader, self.follower):
            self.has(member, self.index + 1, self.term, durable=True)
        self.leads_later(self.other)
        self.commit(self.leader)

    def commits_what_is(self, *, term: int, durable: bool) -> None:
        for member in (self.leader, self.follower) if durable else (self.leader,):
            self.has(member, self.index + 1, term, durable=durable)
        self.commit(self.leader)

    def forgets_that_it_applied(self, member: SimMember) -> None:
        self.checker(member)._applied_index -= 1
        self.show(member)

    def hides_the_low_watermark(self) -> None:
        self.other.applied_max -= 1
        self.show(self.leader, low_watermark=self.index + 1, commit_index=self.index)

    def applies(self, index: int, term: int) -> None:
        self.follower.checker.applying(Entry(index, term, EntryKind.NO_OP, b""))

    def loses_its_disk(self) -> None:
        """Remove the files that the checkers know to be durable from the follower's disk, and recover."""
        self.follower.image.durable_names.clear()
        self.world.commitment._recover_aside(self.follower, self.index, self.term)

    def recovers_an_older_term(self) -> None:
        durable = self.follower.logs.durable
        durable.hard_state = replace(durable.hard_state, term=self.term + 1)
        self.world.commitment._recover_aside(self.follower, self.index, self.term)

    def say(self, receiver: SimMember, message: Message) -> None:
        """Check the message as if the follower had sent it."""
        check_promise(self.world, self.follower, self.node(self.follower), receiver.node_id, message)

    def drops(self, index: int) -> None:
        self.follower.checker.dropping(index)

    def drops_before_the_snapshot_is_durable(self) -> None:
        self.follower.image.durable_names.clear()
        self.drops(self.checker(self.follower)._storage.snapshots.latest().header.index + 1)

    def reads_behind(self) -> None:
        fields = {"term": self.term + 1, "read_index": self.index - 1, "counter": 1}
        event = TraceEvent("read_round", fields)
        self.leader.checker.told(cast(Effects, SimpleNamespace(events=[event], completions=[])))


@contextmanager
def broken_rule(rule: str) -> Iterator[None]:
    with pytest.raises(Violation) as caught:
        yield
    assert caught.value.rule == rule

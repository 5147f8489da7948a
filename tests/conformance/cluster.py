"""Several cores, a network that the test controls, and disks that end a sync when the test demands it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from raft.config import RaftConfig
from raft.protocol.messages import AppendEntries, AppendRejected, Message
from raft.types import Entry, LogPosition, Role
from tests.raft.support.core_fixture import CONFIG, Bench

DELIVERIES_MAX = 10_000
"""A cluster without outside events comes to rest after far fewer deliveries. If a cluster exceeds this number, its
members cause each other's messages without end."""

CAMPAIGNS_MAX = 3


class Cluster:
    """Members s1, s2, … by name. No message is delivered and no disk syncs until the test asks for it."""

    def __init__(
        self,
        logs: Mapping[str, Sequence[int]],
        *,
        terms: Mapping[str, int] | None = None,
        term: int = 0,
        commit_index: int = 0,
        config: RaftConfig = CONFIG,
    ) -> None:
        """`logs`: the terms of each member's entries, all durable."""
        self._config, self._ids = config, sorted(logs)
        self.wire: list[tuple[str, str, Message]] = []  # (from, to, message), oldest first.
        self.down: set[str] = set()
        self.cut_links: set[tuple[str, str]] = set()  # (from, to)
        self.slow_disks: set[str] = set()
        self.loses_appends = False
        self.rejections: list[tuple[str, AppendRejected]] = []  # Every delivered rejection: (from, message).
        self.members = {
            node_id: Bench(
                node_id,
                [other for other in self._ids if other != node_id],
                term=(terms or {}).get(node_id, term),
                log_terms=logs[node_id],
                commit_index=commit_index,
                config=config,
                seed=number,
            )
            for number, node_id in enumerate(self._ids)
        }

    def __getitem__(self, node_id: str) -> Bench:
        return self.members[node_id]

    # What moves

    def settle(self) -> None:
        """Sync every disk that is not slow, and deliver every message whose link is not cut. Continue until nothing
        remains to be done."""
        for _ in range(DELIVERIES_MAX):
            for node_id, bench in self.members.items():
                if node_id not in self.slow_disks | self.down:
                    bench.persist()
            self.collect()
            if not self.wire:
                return
            self.deliver(self.wire[0])
        raise AssertionError(f"no rest after {DELIVERIES_MAX} deliveries")

    def collect(self) -> None:
        """Put the messages that the members have sent on the wire."""
        for node_id, bench in self.members.items():
            self.wire += [(node_id, to, message) for to, message in bench.take_sent()]
        self.wire = [item for item in self.wire if not self._is_lost(item)]

    def deliver(self, item: tuple[str, str, Message]) -> None:
        """Deliver one message of the wire, or a message that was taken off the wire earlier."""
        if item in self.wire:
            self.wire.remove(item)
        sender, to, message = item
        if isinstance(message, AppendRejected):
            self.rejections.append((sender, message))
        if to not in self.down:
            self.members[to].step(sender, message)

    def hold_back(self, wanted: Callable[[str, str, Message], bool]) -> list[tuple[str, str, Message]]:
        """Take messages off the wire; they may be delivered later, again, or never."""
        self.collect()
        held = [item for item in self.wire if wanted(*item)]
        self.wire = [item for item in self.wire if not wanted(*item)]
        return held

    def beat(self) -> None:
        """Send one heartbeat of the leader, and settle."""
        self.members[self.leader_id].heartbeat()
        self.settle()

    def elect(self, node_id: str) -> None:
        """Let this member campaign, and assert that it wins."""
        self.campaign(node_id)
        assert self.members[node_id].core.role is Role.LEADER, self.members[node_id].core

    def campaign(self, node_id: str) -> None:
        """Let this member ask for votes. All other members have lost their leader, and only answer this member.

        The member may ask several times, because the first refusal may only inform the member of the current term.
        """
        for _ in range(CAMPAIGNS_MAX):
            for other_id, bench in self.members.items():
                if other_id not in self.down:
                    bench.advance(2 * self._config.election_timeout_max_ns)
                    bench.take_sent()
            self.members[node_id].time_out()
            self.settle()
            if self.members[node_id].core.role is Role.LEADER:
                return

    def campaign_only(self, node_id: str) -> None:
        """Like `campaign`, but the appends of a new leader are lost."""
        self.loses_appends = True
        self.campaign(node_id)
        self.loses_appends = False

    def cut_off(self, *node_ids: str) -> None:
        """Cut the links between these members and all others."""
        inside = set(node_ids)
        self.cut_links = {(a, b) for a in self._ids for b in self._ids if (a in inside) != (b in inside)}

    def heal(self) -> None:
        """All links work again."""
        self.cut_links = set()

    def crash(self, *node_ids: str) -> None:
        """Kill these members. All data that they had not synced is lost, and so are their messages that nobody has
        received."""
        for node_id in node_ids:
            self.members[node_id].take_sent()
            self.down.add(node_id)
        self.wire = [item for item in self.wire if item[0] not in node_ids]

    def restart(self, node_id: str) -> None:
        """Start the member again with the data that its disk kept."""
        old = self.members[node_id]
        peers = [other for other in self._ids if other != node_id]
        log = old.log.after_crash()
        self.members[node_id] = Bench(
            node_id, peers, log=log, snapshot=log.base, config=self._config, now=old.now, seed=len(log.entries)
        )
        self.down.discard(node_id)

    def propose(self, word: str) -> LogPosition:
        """Propose a command at the leader; nothing is delivered yet."""
        return self.members[self.leader_id].propose(word)

    # The outcome

    @property
    def leader_id(self) -> str:
        """The leader with the highest term."""
        leading = [bench for node_id, bench in self.members.items() if node_id not in self.down]
        leading = [bench for bench in leading if bench.core.role is Role.LEADER]
        assert leading, "nobody leads"
        return max(leading, key=lambda bench: bench.core.term).core.node_id

    def log_of(self, node_id: str) -> list[Entry]:
        return self.members[node_id].log.entries

    def is_lost(self, word: str) -> bool:
        """True if no member that is up holds this command."""
        return not any(self.holds(node_id, word) for node_id in self._ids if node_id not in self.down)

    def holds(self, node_id: str, word: str) -> bool:
        """True if the log has this command."""
        return any(entry.payload[-len(word) :] == word.encode() for entry in self.log_of(node_id))

    def has_applied(self, node_id: str, word: str) -> bool:
        """True if the member's state machine has applied this command. No client can see the command before that."""
        return any(entry.payload[-len(word) :] == word.encode() for entry in self.members[node_id].applied)

    def _is_lost(self, item: tuple[str, str, Message]) -> bool:
        lost_append = self.loses_appends and isinstance(item[2], AppendEntries)
        return lost_append or (item[0], item[1]) in self.cut_links or item[1] in self.down


def entries_to(node_id: str) -> Callable[[str, str, Message], bool]:
    """A filter for `hold_back`: appends to one member that carry entries."""
    return lambda _, to, message: to == node_id and isinstance(message, AppendEntries) and bool(message.entries)

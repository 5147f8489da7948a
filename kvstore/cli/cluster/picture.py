"""The picture that `hwm top` shows: the result of a look at all members, and the rates since the previous look."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvstore.cli.cluster.status import is_refusal, of_its_disk, of_its_marks, of_its_peers, role_and_part
from kvstore.errors import StoreError
from kvstore.protocol.status import MemberStatus, PeerView
from kvstore.protocol.text import escape_controls

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The result of one look at a cluster.

    `at_seconds`: the time by the clock of this process; only differences between two such times have a meaning.
    `members`: the status of each member, or the error that prevented it. `round_trip_seconds`: the time from the
    request to the answer of each member. `read_seconds`: the time that a linearizable read took, or the error that
    prevented it.
    """

    at_seconds: float
    members: Mapping[str, MemberStatus | StoreError]
    round_trip_seconds: Mapping[str, float]
    read_seconds: float | StoreError

    @property
    def found(self) -> list[MemberStatus]:
        """The members that answered."""
        return [found for found in self.members.values() if isinstance(found, MemberStatus)]

    @property
    def leader(self) -> MemberStatus | None:
        """The member that leads in the highest term, if this member answered. A deposed leader may not know yet that it
        is deposed."""
        leaders = [found for found in self.found if found.role == "leader"]
        newest = max(leaders, key=lambda found: found.term, default=None)
        is_newest = newest is not None and newest.term == max(found.term for found in self.found)
        return newest if is_newest else None

    @property
    def best(self) -> MemberStatus | None:
        """The member that describes the whole store best: the leader, or else the member that has applied most."""
        return self.leader or max(self.found, key=lambda found: found.last_applied, default=None)


@dataclass(frozen=True, slots=True)
class Rates:
    """The changes per second between two looks. None: there was no previous look, or a value fell."""

    revisions: float | None
    entries: float | None
    applied: Mapping[str, float]


def rates_of(before: Look | None, now: Look) -> Rates:
    """Compute the rates between two looks."""
    if before is None or now.at_seconds <= before.at_seconds:
        return Rates(None, None, {})
    seconds = now.at_seconds - before.at_seconds

    def rate(old: float, new: float) -> float | None:
        return (new - old) / seconds if new >= old else None

    def greatest(look: Look, value: Callable[[MemberStatus], int]) -> int | None:
        return max(map(value, look.found), default=None)

    both = [
        (greatest(before, value), greatest(now, value))
        for value in (lambda found: found.revision, lambda found: found.commit_index)
    ]
    revisions, entries = (None if old is None or new is None else rate(old, new) for old, new in both)
    old_of = {found.node_id: found.last_applied for found in before.found}
    applied = {
        found.node_id: speed
        for found in now.found
        if found.node_id in old_of and (speed := rate(old_of[found.node_id], found.last_applied)) is not None
    }
    return Rates(revisions, entries, applied)


def picture(before: Look | None, now: Look, width: int) -> RenderableType:
    """Return the picture. At 80 columns, the picture has the most important columns. A wider terminal shows more
    columns."""
    rates = rates_of(before, now)
    return Group(*_head(now, rates), Text(), _table(now, rates, width), Text(), *_held_back(now))


def messages_of(look: Look) -> list[str]:
    """Return the problems that prevent the cluster from serving requests, or a member from keeping up. Empty if there
    is no problem."""
    words = [f"{node_id} {'refuses' if is_refusal(found) else 'does not answer'}: {found}"
             for node_id, found in look.members.items() if isinstance(found, StoreError)]  # fmt: skip
    if look.found and look.leader is None:
        words.append("no member that answered leads: writes and linearizable reads wait for an election")
    if isinstance(look.read_seconds, StoreError):
        words.append(f"a linearizable read failed: {look.read_seconds}")
    for found in look.found:
        for word in (*of_its_disk(found), *of_its_marks(found), *of_its_peers(found)):
            words.append(f"{found.node_id}: {word}")
    if look.leader is not None:
        words += [f"{peer.node_id}: a snapshot is sent to it" for peer in look.leader.peers if peer.state == "snapshot"]
    return words


def slowest_of(look: Look) -> str:
    """Return the peer that has the smallest part of the leader's log, and how far this peer is behind; empty if no peer
    is behind."""
    if look.leader is None or not look.leader.peers:
        return ""
    last = look.leader.last_index
    slowest = min(look.leader.peers, key=lambda peer: (peer.match_index, peer.node_id))
    if slowest.match_index >= last:
        return ""
    lag = "" if slowest.lag_ms is None else f", {_seconds(slowest.lag_ms / 1e3)}"
    behind = last - slowest.match_index
    entries = "entry" if behind == 1 else "entries"
    return f"slowest: {slowest.node_id}, {behind:,} {entries}{lag} behind {look.leader.node_id}"


def _head(now: Look, rates: Rates) -> list[Text]:
    best = now.best
    if best is None:
        is_refused = any(isinstance(found, StoreError) and is_refusal(found) for found in now.members.values())
        words = "no member shows its state" if is_refused else "no member answers"
        return [Text(words, style="bold red")]
    leader = now.leader
    lead = Text.assemble("leader ", (escape_controls(leader.node_id), "bold green")) if leader else Text(
        "no leader", style="bold red")  # fmt: skip
    read = "-" if isinstance(now.read_seconds, StoreError) else _seconds(now.read_seconds)
    term, revision = max(found.term for found in now.found), max(found.revision for found in now.found)
    watches, clients = sum(found.watches for found in now.found), sum(found.client_connections for found in now.found)
    return [
        Text.assemble(f"cluster {best.cluster_id.hex()[:8]}  ", lead, f"  term {term}  level {best.feature_level}"),
        Text(f"changes {_rate(rates.revisions)}  log entries {_rate(rates.entries)}  linearizable read {read}"),
        Text(
            f"revision {revision:,}  keys {best.keys:,}  {_mib(best.stored_bytes)} of {_mib(best.quota_bytes)}"
            f"  history from {best.first_revision:,}"
        ),
        Text(f"sessions {best.sessions:,}  leases {best.leases:,}  watches {watches:,}  connections {clients:,}"),
    ]


@dataclass(frozen=True, slots=True)
class _Row:
    """One member that answered, and the other known facts about it."""

    found: MemberStatus
    mark: int  # The highest known high-water mark.
    peer: PeerView | None  # The state of this member as the leader sees it.
    last_index: int  # The last index of the leader; 0 if there is none.
    applied_per_second: float | None
    round_trip_seconds: float


_COLUMNS: tuple[tuple[str, int, Callable[[_Row], str]], ...] = (
    ("member", 0, lambda row: escape_controls(row.found.node_id)),
    ("role", 0, lambda row: role_and_part(row.found)),
    ("term", 0, lambda row: str(row.found.term)),
    ("high-water\nmark", 0, lambda row: f"{row.found.commit_index:,}"),
    ("to\napply", 0, lambda row: f"{max(0, row.mark - row.found.last_applied):,}"),
    ("applied", 0, lambda row: _rate(row.applied_per_second)),
    ("behind", 0, lambda row: "-" if row.peer is None else f"{max(0, row.last_index - row.peer.match_index):,}"),
    ("in\nsync", 0, lambda row: _in_sync(row)),
    ("answer", 0, lambda row: _seconds(row.round_trip_seconds)),
    ("lag", 100, lambda row: "-" if row.peer is None or row.peer.lag_ms is None else _seconds(row.peer.lag_ms / 1e3)),
    ("not on\nits disk", 100, lambda row: f"{row.found.last_index - row.found.durable_index:,}"),
    ("low-water\nmark", 120, lambda row: f"{row.found.low_watermark:,}"),
    ("log", 120, lambda row: _mib(row.found.log_bytes)),
    ("open\nwrites", 130, lambda row: f"{row.found.open_proposals:,}"),
    ("open\nreads", 130, lambda row: f"{row.found.open_reads:,}"),
    ("watches", 140, lambda row: f"{row.found.watches:,}"),
    ("connec-\ntions", 140, lambda row: f"{row.found.client_connections:,}"),
)
"""(title, the least width of a terminal that shows the column, the function that returns the cell)"""


def _table(now: Look, rates: Rates, width: int) -> Table:
    columns = [(title, cell) for title, width_min, cell in _COLUMNS if width >= width_min]
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold", collapse_padding=True)
    for number, (title, _) in enumerate(columns):
        # An id that does not fit goes on in the next line, because two ids may have the same beginning.
        table.add_column(
            Text(title),
            justify="left" if number < 2 else "right",
            no_wrap=number > 0,
            overflow="ellipsis" if number > 0 else "fold",
        )
    mark = max((found.commit_index for found in now.found), default=0)
    peers = {peer.node_id: peer for peer in now.leader.peers} if now.leader else {}
    last_index = now.leader.last_index if now.leader else 0
    for node_id, found in now.members.items():
        if isinstance(found, StoreError):
            answer = "refused" if is_refusal(found) else "no answer"
            table.add_row(escape_controls(node_id), answer, *["-"] * (len(columns) - 2), style="red")
            continue
        row = _Row(
            found, mark, peers.get(node_id), last_index, rates.applied.get(node_id), now.round_trip_seconds[node_id]
        )
        style = "green" if found.role == "leader" else ""
        table.add_row(*(Text(cell(row)) for _, cell in columns), style=style)
    return table


def _held_back(now: Look) -> list[Text]:
    slowest = slowest_of(now)
    lines = [Text(escape_controls(slowest))] if slowest else []
    words = [Text(escape_controls(word), style="yellow") for word in messages_of(now)]
    return [*lines, *(words or [Text("nothing is held back")])]


def _in_sync(row: _Row) -> str:
    if row.peer is None or row.peer.is_in_sync is None:
        return "-"
    return "yes" if row.peer.is_in_sync else "no"


def _rate(per_second: float | None) -> str:
    return "-" if per_second is None else f"{per_second:,.0f}/s"


def _seconds(seconds: float) -> str:
    """Return three digits, with a suitable unit."""
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / MIB:,.1f} MiB"

"""`hwm status`: the state of every member."""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from kvstore.cli.common import ExitCode, client_options, print_json, print_table, run_with_client
from kvstore.cli.output import say
from kvstore.errors import AccessDenied, Busy, StoreError
from kvstore.protocol.membership import LEARNER, VOTER
from kvstore.protocol.status import MemberStatus

COLUMNS = (
    "member",
    "role",
    "term",
    "last\nindex",
    "commit index =\nhigh-water mark",
    "last\napplied",
    "low-water\nmark",
    "lag",
    "revision",
    "keys",
    "feature level\n(its build's)",
)


SERVICES_COLUMNS = ("member", "watches", "leases", "revision", "history\nfrom", "kept\nchanges", "kept\nbytes")


@click.command()
@click.option("--services", is_flag=True, help="Show watches, leases and history, and not the log, of each member.")
@click.option("--state-hash", is_flag=True, help="Also show a hash of each member's state.")
@client_options
def status(services: bool, state_hash: bool, endpoints: str, deadline_seconds: float, as_json: bool) -> None:
    """Show each member: role or `learner`, term, log, marks, and how far it lags behind the high-water mark.

    Exit code 5 if no member can be reached; 1 if some cannot be reached, or refuse to show their state.
    """
    members = run_with_client(
        endpoints,
        min(deadline_seconds, 2.0),
        lambda client: client.cluster_status(state_hash=state_hash),
    )
    mark = max((found.commit_index for found in members.values() if isinstance(found, MemberStatus)), default=0)
    if as_json:
        print_json([member_json(node_id, found, mark) for node_id, found in members.items()])
    elif services:
        services_rows = [_services_row(node_id, found) for node_id, found in members.items()]
        print_table(SERVICES_COLUMNS, services_rows, is_titled=True)
    else:
        columns = [*COLUMNS, "state\nhash"] if state_hash else COLUMNS
        rows = [_row(node_id, found, mark, state_hash) for node_id, found in members.items()]
        print_table(columns, rows, is_titled=True)
    for node_id, found in members.items():
        if isinstance(found, StoreError):
            say(f"{node_id} {'refuses' if is_refusal(found) else 'did not answer'}: {found}")
        else:
            for word in (*of_its_disk(found), *of_its_marks(found), *of_its_peers(found)):
                say(f"{node_id}: {word}")
    if (level := could_be_raised(list(members.values()))) is not None:
        say(f"every member knows feature level {level}; `hwm upgrade` puts it in force permanently")
    if hint := next((found.hint for found in members.values() if isinstance(found, AccessDenied)), ""):
        say(f"hint: {hint}")
    if any(isinstance(found, StoreError) for found in members.values()):
        sys.exit(ExitCode.NEGATIVE)


def is_refusal(found: StoreError) -> bool:
    """True if the member has answered, and refuses to show its state, for example because the user is unknown."""
    return isinstance(found, AccessDenied | Busy)


def could_be_raised(members: list[MemberStatus | StoreError]) -> int | None:
    """Return the highest feature level that every member knows, if this level is above the level in force. Otherwise,
    or if a member has not answered, return None.
    """
    found = [each for each in members if isinstance(each, MemberStatus)]
    level = min((each.feature_level_max for each in found), default=0)
    is_higher = len(found) == len(members) and level > max((each.feature_level for each in found), default=0)
    return level if is_higher else None


def of_its_disk(found: MemberStatus) -> list[str]:
    """Return messages about problems of one member: its failure, its disk, its descriptors, its places for clients."""
    words = []
    if found.failure is not None:
        words.append(f"has stopped: {found.failure}")
    if found.is_disk_full:
        words.append("its disk is full: writes are refused and reads go on; make room on it")
    if found.lacks_descriptors:
        words.append(
            f"{found.lacks_descriptors}: writes are refused and reads go on; close connections, or raise the limit"
        )
    if 0 < found.client_connections_max <= found.client_connections:
        words.append(
            f"all its {found.client_connections_max} places for clients are taken: a new client replaces an idle one"
        )
    if found.disk_hangs:
        words.append("its disk hangs: a write has not become durable for a long time; check the disk")
    return words


def of_its_peers(found: MemberStatus) -> list[str]:
    """Return messages about the peers of a member: ids under which two processes have connected to the member, and, on
    the leader, the peers that are not in sync."""
    words = [
        f"two processes connect to it as {peer_id}, with copies of one data folder: stop one of them"
        for peer_id in found.duplicate_members
    ]
    late = [f"{peer.node_id} (by {(peer.lag_ms or 0) / 1e3:.1f} s)" for peer in found.peers if peer.is_in_sync is False]
    return [*words, f"not in sync with it, because they lag: {', '.join(late)}"] if late else words


def of_its_marks(found: MemberStatus) -> list[str]:
    """Return messages about the members that keep the high-water mark or the low-water mark from rising. Only the
    leader knows these members. A mark that can rise causes no message."""
    words = []
    if found.commit_held_by:
        waits = ", ".join(found.commit_held_by)
        words.append(f"its high-water mark is {found.commit_index} of {found.last_index}: it waits for {waits}")
    if found.low_watermark_held_by:
        held_by = ", ".join(found.low_watermark_held_by)
        words.append(f"its low-water mark is {found.low_watermark} of {found.commit_index}: held back by {held_by}")
        if found.log_held_by == "low_watermark":
            words += _of_its_log(found)
    return words


def _of_its_log(found: MemberStatus) -> list[str]:
    """Return messages about the members for which the log is kept, and about members that need entries which the log no
    longer contains."""
    first = found.first_index
    late = {peer.node_id for peer in found.peers if peer.state == "snapshot" or peer.next_index < first}
    kept_for = [node_id for node_id in found.low_watermark_held_by if node_id not in late]
    too_late_for = [node_id for node_id in found.low_watermark_held_by if node_id in late]
    words = []
    if kept_for:
        words.append(f"its log, from {first} on, is kept for {', '.join(kept_for)}")
    if too_late_for:
        words.append(f"its log begins at {first}, too late for {', '.join(too_late_for)}: a snapshot is sent instead")
    return words


def role_and_part(found: MemberStatus) -> str:
    """Return the role of the member, and its part in the membership unless the part is `voter` or unknown.

    A learner whose role is `follower` is shown as `learner` alone.
    """
    if found.part == LEARNER and found.role == "follower":
        return LEARNER
    return found.role if found.part in ("", VOTER) else f"{found.role} ({found.part})"


def _row(node_id: str, found: MemberStatus | StoreError, mark: int, state_hash: bool) -> list[object]:
    if isinstance(found, StoreError):
        return [node_id, "refused" if is_refusal(found) else "unreachable", *["-"] * (len(COLUMNS) - 2 + state_hash)]
    return [
        node_id,
        role_and_part(found),
        found.term,
        found.last_index,
        found.commit_index,
        found.last_applied,
        found.low_watermark,
        max(0, mark - found.last_applied),
        found.revision,
        found.keys,
        f"{found.feature_level} ({found.feature_level_max})",
        *([found.state_hash.hex()[:16]] if state_hash else []),
    ]


def _services_row(node_id: str, found: MemberStatus | StoreError) -> list[object]:
    if isinstance(found, StoreError):
        return [node_id, "refused" if is_refusal(found) else "unreachable", *["-"] * (len(SERVICES_COLUMNS) - 2)]
    history = found.first_revision, found.history_events, found.history_bytes
    return [node_id, found.watches, found.leases, found.revision, *history]


def member_json(node_id: str, found: MemberStatus | StoreError, mark: int) -> dict[str, object]:
    """Convert what a member reported for JSON output. `mark`: the highest high-water mark that a member knows."""
    if isinstance(found, StoreError):
        return {"node_id": node_id, "reachable": is_refusal(found), "error": str(found)}
    shown = asdict(found)
    shown["cluster_id"], shown["state_hash"] = found.cluster_id.hex(), found.state_hash.hex()
    return {"reachable": True, **shown, "lag": max(0, mark - found.last_applied)}

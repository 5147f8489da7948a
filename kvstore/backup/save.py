"""Saving a snapshot of a running cluster to a file (`hwm snapshot save`).

The guarantee: the file contains the store at one revision, with every write that was acknowledged before
`save_snapshot` was called. A linearizable read returns a revision R that the store has reached. Any member that has
applied R can then build a snapshot of revision R or later.

Without a majority, there is no linearizable read. With `existing`, R is the revision that the selected member itself
has applied. The state at R is committed, but the cluster may have acknowledged later writes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import trio

from kvstore.backup.file import AtomicFile, BackupFailed, SnapshotFacts, SnapshotVerifier
from kvstore.client.client import ClientCalls
from kvstore.errors import InvalidAddress, Unavailable
from kvstore.protocol.addresses import parse_address
from kvstore.protocol.commands import Get
from kvstore.protocol.messages import Response, snapshot_request
from kvstore.protocol.status import MemberStatus

PAGE_BYTES = 256 * 1024
"""The size of one page. A larger response would delay other clients and the heartbeats of the member."""

LOOK_SECONDS = 0.05
BUILD_AGAIN_SECONDS = 5.0
"""The pause before the build of a snapshot is requested again. A member cancels a build if its disk is full."""

WAIT_SECONDS_DEFAULT = 60.0
TRIES_MAX = 5
"""The greatest number of attempts to transfer a snapshot. A member that has built its next snapshot deletes the
snapshot that is being transferred, so the transfer must begin again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedSnapshot:
    """The contents of the saved file. With `existing`, `member` is the status of the member that sent the contents."""

    facts: SnapshotFacts
    size_bytes: int
    node_id: str
    member: MemberStatus | None = None

    @property
    def is_older(self) -> bool:
        """True if the member has applied committed writes that the file lacks."""
        return self.member is not None and self.facts.revision < self.member.revision

    @property
    def open_entries(self) -> int:
        """The number of entries in the member's log that the member had not applied. The file lacks these entries, but
        their writes may have been acknowledged. Entries that the member knew to be committed are included.
        """
        if self.member is None:
            return 0
        return max(0, self.member.last_index - max(self.member.last_applied, self.facts.index))


async def save_snapshot(
    client: ClientCalls,
    path: Path | None,
    *,
    member: str | None = None,
    existing: bool = False,
    force: bool = False,
    wait_seconds: float = WAIT_SECONDS_DEFAULT,
    tell: Callable[[str], None] = lambda _: None,
) -> SavedSnapshot:
    """Save a snapshot of the cluster as the file `path`, verified and durable. After an error, no incomplete file with
    this name remains.

    If `path` is None, the file is standard output, which gets all bytes at the end, after they are verified. `member`:
    a node id or address; None means the leader. `existing`: save the state that this member itself has applied. This
    option is for a cluster that has lost its majority. The guarantee of this module does not hold for such a file. If
    the member cannot build such a snapshot within `wait_seconds`, its newest snapshot is saved instead
    (`SavedSnapshot.is_older`). `force`: replace an existing file. `wait_seconds`: the time in which the member must
    build a snapshot. The client's deadline applies to each request. If the member cancels a build, `tell` is called
    with a message for the user, once for each reason, and the build is requested again. Raises BackupFailed and the
    errors of the client.
    """
    if member is not None and ":" in member:
        parse_address(member)  # Check the address before any request is sent.
    with AtomicFile(path, force=force) as aside:
        least = 0 if existing else (await client.execute(Get(b"\0"))).revision
        address = await _address(client, member)
        own = await client.status(address) if existing else None
        revision = own.revision if own is not None else least
        source = _SnapshotSource(client, address, revision, own is not None, wait_seconds, tell)
        for _ in range(TRIES_MAX):
            first = await source.first_page()
            verifier = SnapshotVerifier(f"{path or 'standard output'} from {first.node_id}")
            if await source.receive(first, aside, verifier):
                facts = verifier.finish()
                if facts.revision < revision and own is None:
                    raise BackupFailed(f"{first.node_id} sent revision {facts.revision}, but {revision} was requested")
                await trio.to_thread.run_sync(aside.publish)
                return SavedSnapshot(facts=facts, size_bytes=first.fields[1], node_id=first.node_id, member=own)
            aside.begin()
    raise BackupFailed(
        f"{address} has replaced its snapshot {TRIES_MAX} times while it was read",
        "its log grows faster than the snapshot can be read: save it nearby, or raise --snapshot-log-bytes",
    )


async def _address(client: ClientCalls, member: str | None) -> str:
    """Return the address of the member `member`. If `member` is None, wait until there is a leader, and return the
    leader's address. Raises InvalidAddress, Unavailable."""
    if member is not None and ":" in member:
        return member
    with trio.move_on_after(client.deadline_seconds):
        while True:
            view = await client.members()
            addresses: dict[str | None, str | None] = dict(view.members)
            found = view.leader_address if member is None else addresses.get(member)
            if found:
                return found
            if member is not None:
                known = ", ".join(node_id for node_id, _ in view.members)
                raise InvalidAddress(member, f"no such member; there are {known}")
            await trio.sleep(LOOK_SECONDS)
    raise Unavailable("nobody leads")


@dataclass(frozen=True, slots=True)
class _SnapshotSource:
    """The member that sends a snapshot of `revision` or later. With `may_be_older`, any snapshot is accepted after
    `wait_seconds`."""

    client: ClientCalls
    address: str
    revision: int
    may_be_older: bool
    wait_seconds: float
    tell: Callable[[str], None]
    told: set[str] = field(default_factory=set)

    async def first_page(self) -> Response:
        """Return the first page of a snapshot. The request is repeated until the member has a sufficiently new
        snapshot."""
        words, given_up, build_at = "it has not answered", "", trio.current_time()
        with trio.move_on_after(self.wait_seconds):
            while True:
                build = trio.current_time() >= build_at
                response = await self._ask(revision_min=self.revision, build=build)
                if is_page(response, 0):
                    return response
                _, words, is_being_built, *more = response.fields  # Members of older builds send only three fields.
                if more and isinstance(more[0], str) and more[0]:
                    given_up = f"{response.node_id} gave up: {more[0]}"
                    if given_up not in self.told:
                        self.told.add(given_up)
                        self.tell(f"{given_up}; trying again")
                if is_being_built and build:
                    build_at = trio.current_time() + BUILD_AGAIN_SECONDS
                await trio.sleep(LOOK_SECONDS)
        if self.may_be_older and is_page(response := await self._ask(), 0):
            return response
        raise BackupFailed(
            f"{self.address} had no snapshot to send within {self.wait_seconds:g} s: {given_up or words}",
            "if its disk is full, or it is cut off, name another --member; a large store may need a longer --wait",
        )

    async def receive(self, page: Response, aside: AtomicFile, verifier: SnapshotVerifier) -> bool:
        """Fetch all pages after the first page, `page`. Verify and write all pages, including `page`. Return False if
        the snapshot was replaced meanwhile."""
        name, size_bytes, data = page.fields[:3]
        offset = 0
        while True:
            verifier.feed(data)
            aside.write(data)
            offset += len(data)
            if offset >= size_bytes:
                return True
            page = await self._ask(name, offset=offset)
            if not is_page(page, offset):
                return False
            data = page.fields[2]

    async def _ask(
        self, name: str | None = None, *, offset: int = 0, revision_min: int = 0, build: bool = False
    ) -> Response:
        return await self.client.ask(
            snapshot_request(
                self.address, name, offset=offset, bytes_max=PAGE_BYTES, revision_min=revision_min, build=build
            )
        )


def is_page(response: Response, offset: int) -> bool:
    """Return True if the response is a page of a snapshot, and False if the member has no such page. Raises
    BackupFailed for any other response, and for an empty page, because empty pages would never end the transfer."""
    match response.fields:
        case (None, str(), bool(), *_):
            return False
        case (str(), int() as size_bytes, bytes() as data, *_) if data and offset + len(data) <= size_bytes:
            return True
    raise BackupFailed(f"{response.node_id} gave an answer that is not a page of a snapshot")

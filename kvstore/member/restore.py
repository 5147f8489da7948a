"""Begins a new cluster with an existing state: with a saved snapshot (`hwm snapshot restore`), or with the state that
`kvstore.member.etcd_import` reads.

All members are made from the same file. The state of a member at index 0 is the state in the snapshot. (After `hwm
init`, the state at index 0 is the empty store.)

The cluster id is new. The new id is derived from the token, the member list and the restored state. Therefore members
of the old cluster refuse members of the new cluster, and members that were restored from different files refuse each
other. A folder that was made by `hwm init` lacks the restored keys, and its member can never join the restored cluster.

Sessions and their kept results are dropped, and the new cluster does not use their session ids again. The history is
not restored. Leases are restored with their remaining times: see docs/operations/guide.md.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import cbor2

from kvstore.backup.file import BackupDamaged, BackupFailed, BackupReader, SnapshotFacts
from kvstore.limits import HISTORY_LEVEL, StoreLimits
from kvstore.member.config import MemberConfig
from kvstore.store.map import KeyValueMap
from kvstore.store.sessions import Sessions
from kvstore.store.snapshot_codec import (
    InvalidSnapshot,
    UnsupportedFeatureLevel,
    header_of,
    read_header,
    read_state,
    take_snapshot,
)
from raft import INT64_MAX, Configuration, Identity, InvalidConfiguration, Member, derive_cluster_id
from storage import create_data_folder

SESSION_LEAP = 1 << 32
"""The distance of new session ids and lease ids from the ids in the snapshot. With this distance, new ids differ from
all ids that the old cluster has assigned since the snapshot."""

REVISION_LEAP = 1 << 32
"""At feature level 2, the default distance of the new cluster's first revision from the revision of the snapshot. With
this distance, the new cluster uses no revision of the old cluster. Fences therefore do not repeat, and a watch that
continues from a revision of the old cluster fails with RevisionCompacted."""

REVISION_LEAP_MAX = 1 << 48


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredMember:
    """A member made from a snapshot file.

    `facts`: the contents of the file. `identity`: the identity of the new member. `revision`: the first revision of the
    new cluster's store.
    """

    facts: SnapshotFacts
    identity: Identity
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialState:
    """The first state of a member. All members that are made from the same file have the same first state."""

    header: Mapping[str, Any]
    chunks: list[bytes]

    @property
    def revision(self) -> int:
        """The first revision of the new cluster's store."""
        revision: int = self.header["revision"]
        return revision

    @property
    def digest(self) -> bytes:
        """Return a SHA-256 hash of the header and all chunks."""
        digest = hashlib.sha256(cbor2.dumps(dict(self.header), canonical=True))
        for chunk in self.chunks:
            digest.update(len(chunk).to_bytes(4, "big") + chunk)
        return digest.digest()

    @classmethod
    def of(
        cls,
        name: str,
        store: KeyValueMap,
        *,
        next_session_id: int,
        limits: StoreLimits,
        leader_time: int,
        level: int,
        revision_leap: int | None = None,
        **others: Any,
    ) -> Self:
        """Return the first state of a cluster that begins with the records, leases and users of `store`, which was read
        from the file `name`. `others`: the fields of a subclass. Raises BackupFailed.

        `store` is changed: `revision_leap` (None: REVISION_LEAP, or 0 at feature level 1) is added to its revision,
        SESSION_LEAP is added to the id of its next lease, and its history is dropped.
        """
        sessions = Sessions()
        sessions.next_id = next_session_id
        is_level_1 = level < HISTORY_LEVEL
        store.revision += revision_leap if revision_leap is not None else 0 if is_level_1 else REVISION_LEAP
        store.leases.next_id += SESSION_LEAP
        store.history.forget(store.revision)
        if max(store.revision, sessions.next_id) > INT64_MAX:
            used = f"its revision {store.revision} or session id {sessions.next_id} leaves no room above it"
            raise BackupFailed(f"{name}: {used}", "no store reaches this number: use another copy, or a smaller leap")
        header = header_of(store, sessions, limits, leader_time, level)
        return cls(header=header, chunks=list(take_snapshot(store, sessions, header).chunks), **others)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState(InitialState):
    """The first state of a member that is made from a saved snapshot. `size_bytes`: the size of the file."""

    facts: SnapshotFacts
    size_bytes: int


_State = TypeVar("_State", bound=InitialState)


def read_initial_state(path: Path | None, revision_leap: int | None = None) -> SavedState:
    """Read and verify a file (None: standard input), including all rows. Raises BackupFailed.

    A `revision_leap` of None means REVISION_LEAP, or 0 at feature level 1.

    Cost: O(n). The state is held in memory twice.
    """
    name = str(path or "standard input")
    with BackupReader(path) as backup:
        header, chunks = backup.header.machine, backup.chunks()
        try:
            limits = read_header(header)
            store, sessions = read_state(header, chunks)
            for _ in chunks:  # This call also verifies the file up to its end.
                pass
        except InvalidSnapshot as error:
            raise BackupDamaged(name, 0, error.reason) from error
        except UnsupportedFeatureLevel as error:
            known = f"its feature level is {error.level}; this build knows {error.levels}"
            raise BackupFailed(f"{name}: {known}", "use the build that saved it") from error
        return SavedState.of(
            name,
            store,
            next_session_id=sessions.next_id + SESSION_LEAP,
            limits=limits,
            leader_time=header["leader_time"],
            level=header["feature_level"],
            revision_leap=revision_leap,
            facts=backup.facts,
            size_bytes=backup.size_bytes,
        )


def restore_folder(config: MemberConfig, path: Path | None, revision_leap: int | None = None) -> RestoredMember:
    """Make `config.folder` the data folder of a member of a new cluster that begins with the state in the file `path`.

    `config` is the same as for `initialize_folder`, but a cluster of several members needs a token. `revision_leap` is
    added to the store's revision (None: as in `read_initial_state`). All members must be made from the same file, with
    the same token, member list and leap. If this raises BackupFailed, InvalidConfiguration, NotAMember, StorageError or
    OSError, nothing was made.
    """
    initial, identity = begin_with_state(config, lambda: read_initial_state(path, revision_leap))
    return RestoredMember(facts=initial.facts, identity=identity, revision=initial.revision)


def begin_with_state(config: MemberConfig, read: Callable[[], _State]) -> tuple[_State, Identity]:
    """Make `config.folder` the data folder of a member of a new cluster that begins with the state that `read` returns.

    `read` is called after `config` was checked. Return the state and the identity of the member. Raises
    InvalidConfiguration, NotAMember, StorageError, OSError and the errors of `read`; then nothing was made.
    """
    configuration, node_id = config.configuration, config.node_id or "s1"
    token = config.cluster_token.encode()
    if configuration is None:
        configuration = Configuration.of([Member(node_id)])
        token = token or uuid.uuid4().bytes
    elif config.node_id is None:
        raise InvalidConfiguration("a member of a cluster is restored with its own node id")
    elif not token:
        raise InvalidConfiguration("the new cluster needs a --cluster-token of its own, the same on all members")
    initial = read()
    identity = Identity(
        cluster_id=derive_cluster_id(b"\0restored\0" + initial.digest + token, configuration),
        group_id=0,
        node_id=node_id,
        incarnation_id=os.urandom(16),
    )
    create_data_folder(
        config.folder,
        identity=identity,
        configuration=configuration,
        machine_header=initial.header,
        machine_chunks=initial.chunks,
    )
    return initial, identity

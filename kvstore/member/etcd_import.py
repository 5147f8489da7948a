"""Makes members of a new cluster that begins with the present records of a snapshot file of etcd (`hwm import-etcd`).

The revision leaps, as after `hwm snapshot restore`, because a snapshot file of etcd has the state of one member at one
moment. etcd may have acknowledged later writes, and its clients may know the revisions of these writes. Without a leap,
the new cluster would use the same revisions again. Then a fence would repeat, and a watch that continues after such a
revision would miss changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvstore.etcd.snapshot.to_store import ImportSummary, read_etcd_store
from kvstore.limits import FEATURE_LEVEL_MAX, StoreLimits
from kvstore.member.config import MemberConfig
from kvstore.member.restore import InitialState, begin_with_state
from kvstore.store.sessions import FIRST_SESSION_ID
from raft import Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedMember:
    """A member made from a snapshot file of etcd. `revision`: the first revision of the new cluster's store."""

    contents: ImportSummary
    identity: Identity
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedState(InitialState):
    """The first state of a member that is made from a snapshot file of etcd."""

    contents: ImportSummary


def read_etcd_state(path: Path, revision_leap: int | None = None) -> ImportedState:
    """Read a snapshot file of etcd. Raises UnusableFile, and BackupFailed if the revision is too great to leap.

    A `revision_leap` of None means REVISION_LEAP. The state has the highest feature level.

    Cost: O(n log n). The state is held in memory twice.
    """
    store, contents = read_etcd_store(path)
    return ImportedState.of(
        str(path),
        store,
        next_session_id=FIRST_SESSION_ID,
        limits=StoreLimits(),
        leader_time=0,
        level=FEATURE_LEVEL_MAX,
        revision_leap=revision_leap,
        contents=contents,
    )


def import_etcd_folder(config: MemberConfig, path: Path, revision_leap: int | None = None) -> ImportedMember:
    """Make `config.folder` the data folder of a member of a new cluster that begins with the present records of the
    snapshot file `path` of etcd.

    `config` is the same as for `restore_folder`. All members must be made from the same file, with the same token,
    member list and leap. If this raises UnusableFile, BackupFailed, InvalidConfiguration, NotAMember, StorageError or
    OSError, nothing was made.
    """
    initial, identity = begin_with_state(config, lambda: read_etcd_state(path, revision_leap))
    return ImportedMember(contents=initial.contents, identity=identity, revision=initial.revision)

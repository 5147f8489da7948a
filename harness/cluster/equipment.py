"""What members are started with beside who they are: their settings, disks and clocks of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.cluster.member_options import LEASE_READS, NO_LEADER_LOSS_HINT, SMALL_STORAGE, USUAL_STORAGE
from harness.cluster.process import MemberProcess
from harness.cluster.volumes import SMALL_BYTES, USUAL_BYTES, FileSystem, Volume


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipment:
    """`file_system`: of a volume for each member, or None: a folder will do. `faketime`: the library, if needed.

    `tampered`: their disks and clocks can be tampered with (`harness.cluster.os_faults`), which costs a little time.
    `has_metrics`: each has a port for metrics and probes. `descriptors_max`: their limit of open files, soft and hard;
    None: that of the harness.
    """

    small_storage: bool = False
    lease_reads: bool = False
    leader_loss_hint: bool = True
    file_system: FileSystem | None = None
    faketime: Path | None = None
    tampered: bool = False
    has_metrics: bool = False
    descriptors_max: int | None = None

    @property
    def options(self) -> Sequence[str]:
        """Further options of `hwm serve`."""
        storage = SMALL_STORAGE if self.small_storage else USUAL_STORAGE
        switches = [LEASE_READS] if self.lease_reads else []
        switches += [] if self.leader_loss_hint else [NO_LEADER_LOSS_HINT]
        return (*storage, *switches)

    def volume(self, home: Path, node_id: str) -> Volume | None:
        """A volume for a new member, not yet open."""
        if self.file_system is None:
            return None
        size_bytes = SMALL_BYTES if self.small_storage else USUAL_BYTES
        return Volume(home / "volumes", node_id, file_system=self.file_system, size_bytes=size_bytes)

    def process(self, home: Path, node_id: str, arguments: Sequence[str]) -> MemberProcess:
        """The process of a new member, not yet started."""
        member = MemberProcess(node_id, arguments, home / f"{node_id}.log")
        member.descriptors_max = self.descriptors_max
        if self.faketime is not None:
            member.give_wall_clock(self.faketime)
        if self.tampered:
            member.give_controls()
        return member

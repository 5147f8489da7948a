"""The file descriptors of one process, and how many of them clients may hold (docs/operations/guide.md, "Bounds").

The usual soft limit is 1,024, and a member may have 1,000 clients. Without a budget, such a member might fail to open
its next log file. Therefore a member raises the limit at its start. The bound on clients is computed from the raised
limit and the number of descriptors that are already open. (A program that embeds a member may have opened many.)
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from kvstore.errors import StoreError
from kvstore.limits import ServiceLimits
from raft.runtime import CONNECTIONS_MAX as PEER_CONNECTIONS_MAX
from raft.runtime import descriptor_limit

logger = logging.getLogger("kvstore.descriptor_budget")

DESCRIPTORS_MIN = 64
"""A member refuses to start with fewer descriptors. In a test, one of three voters, with metrics, writes and snapshots,
had 24 to 27 open descriptors. The voter worked with a limit of 32, but not with a limit of 26. The rest of the minimum
is for clients and for snapshots under way."""

FILE_DESCRIPTORS_RESERVED = 80
"""Reserved for the log and snapshots: the storage keeps up to 32 files open for reading and 32 for writing, and briefly
opens other files."""

PEER_DESCRIPTORS_RESERVED = PEER_CONNECTIONS_MAX + 16
"""Reserved for incoming connections at the peer port, and for connections that this member makes."""

METRICS_DESCRIPTORS_RESERVED = 40
"""More than the greatest number of connections to the metrics port, `metrics_http.CONNECTIONS_MAX`. That constant is
not imported here, because `metrics_http` is loaded only if there are metrics."""

PROCESS_DESCRIPTORS_RESERVED = 24
"""Reserved for standard streams, listening sockets, the event loop, a ready file, a crash file and the spare
descriptors."""


def descriptors_reserved(limits: ServiceLimits) -> int:
    """Return the number of descriptors that clients must not use."""
    return (
        FILE_DESCRIPTORS_RESERVED
        + PEER_DESCRIPTORS_RESERVED
        + PROCESS_DESCRIPTORS_RESERVED
        + METRICS_DESCRIPTORS_RESERVED
        + limits.operator_connections_max
        + limits.closing_connections_max
    )


DESCRIPTORS_WANTED = 10_240
"""The soft limit is raised to this number, or to a greater number if the bounds need it, as far as the hard limit
allows. A greater limit would slow down child processes: they inherit the limit, and some of them close every possible
descriptor at their start. (Hard limits of 2^30 are usual in containers.) This number is also the greatest soft limit
that macOS accepts."""

CLIENT_SHARE_MIN = 4
"""Clients get at least a fourth of all descriptors, even if the reserved descriptors leave less than a fourth. In that
case, connections to other ports could use up all descriptors. If files or sockets cannot be opened, the member tries
again later."""


CLOSING_SHARE_MAX = 16
"""Connections that are being closed use at most a sixteenth of all descriptors: 4 of 64, when clients use 16."""


class TooFewDescriptors(StoreError):
    """The limit on open files is too small for a member. `held`: the number of files that are already open."""

    def __init__(self, limit: int, held: int = 0) -> None:
        super().__init__(limit, held)
        self.limit, self.held = limit, held

    def __str__(self) -> str:
        held = f", and has {self.held} open" if self.held > PROCESS_DESCRIPTORS_RESERVED else ""
        return f"this process may open {self.limit} files{held}; a member needs at least {DESCRIPTORS_MIN}"

    @property
    def hint(self) -> str:
        return "raise the limit (`ulimit -n 4096`, or `LimitNOFILE=` of a systemd unit), and start it again"


def raise_descriptor_limit(wanted: int = DESCRIPTORS_WANTED) -> int | None:
    """Raise the soft limit on open files of this process to `wanted`, as far as the hard limit allows. The limit is
    never lowered.

    Returns the new limit; None if there is no limit, or if the system reports no limit. Child processes inherit the
    limit. In a program that uses `select`, descriptors of 1,024 and more then raise ValueError.
    """
    try:
        import resource
    except ImportError:  # Not on Windows.
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):  # A sandbox may forbid this.
            logger.debug("the soft limit on open files stays %d", soft)
    return descriptor_limit()


def descriptors_open() -> int:
    """Return the number of open descriptors of this process; 0 if the system does not report the number."""
    try:
        return len(list(Path("/dev/fd").iterdir())) - 1  # The listing itself opens a descriptor.
    except OSError:
        return 0


def limits_within(limits: ServiceLimits, descriptors: int | None, held: int = 0) -> ServiceLimits:
    """Return `limits`, with `connections_max` and `closing_connections_max` lowered to values that `descriptors` allow.
    Raises TooFewDescriptors.

    `held`: the number of descriptors that are already open.
    """
    if descriptors is None:
        return limits
    left = descriptors - max(0, held - PROCESS_DESCRIPTORS_RESERVED)
    if left < DESCRIPTORS_MIN:
        raise TooFewDescriptors(descriptors, held)
    clients_max = max(left - descriptors_reserved(limits), left // CLIENT_SHARE_MIN)
    closing_max = max(1, left // CLOSING_SHARE_MAX)
    if clients_max >= limits.connections_max and closing_max >= limits.closing_connections_max:
        return limits
    return replace(
        limits,
        connections_max=min(clients_max, limits.connections_max),
        closing_connections_max=min(closing_max, limits.closing_connections_max),
    )


def budget_descriptors(limits: ServiceLimits) -> ServiceLimits:
    """Raise the limit on open files at the start of a member, and bound the number of clients by this limit. Raises
    TooFewDescriptors."""
    held = descriptors_open()
    needed = limits.connections_max + descriptors_reserved(limits) + held
    descriptors = raise_descriptor_limit(max(DESCRIPTORS_WANTED, needed))
    bounded = limits_within(limits, descriptors, held)
    if bounded.connections_max == limits.connections_max:
        known = "no limit on open files" if descriptors is None else f"{descriptors} open files"
        logger.info("connections_max is %d clients, with %s", limits.connections_max, known)
    else:
        assert descriptors is not None
        logger.warning(
            "connections_max is %d clients instead of %d: this process may have %d open files, of which %d are kept "
            "for the log, snapshots, peers, metrics, operators, and the %d that were open before; raise the limit "
            "(`ulimit -n`, `LimitNOFILE=` of a systemd unit)",
            bounded.connections_max, limits.connections_max, descriptors, descriptors - bounded.connections_max, held,
        )  # fmt: skip
    return bounded

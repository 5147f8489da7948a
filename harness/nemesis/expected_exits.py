"""The exit codes of `hwm serve` with which a member may end under a fault."""

from __future__ import annotations

from collections.abc import Mapping

from harness.nemesis.active_fault import ActiveFault

STOPPED_AS_ASKED, REFUSED, NO_ANSWER, STOPPED_ITSELF, WAS_REMOVED = 0, 3, 5, 6, 7
# The exit code after a SIGTERM while Python still loads, when the system's default action ends the process.
_BEFORE_IT_LISTENS = -15

Codes = frozenset[int | None]
"""A set of exit codes. None stands for a member that did not end by itself and was killed."""

WHILE_JOINING: Codes = frozenset({REFUSED, NO_ANSWER})
"""The exit codes with which a joining member may end by itself: no member answered it, or it refused to start because
of another fault.
"""


def if_its_disk_fails(active: ActiveFault) -> dict[str, Codes]:
    """Return the exit codes with which each victim may end once its disk fails.

    Call this function before the fault, because a victim that still joins may end with other exit codes than a victim
    that serves.
    """
    return _allowed(active, {STOPPED_ITSELF}, starting={REFUSED}, joining={*WHILE_JOINING, None})


def if_asked_to_stop(active: ActiveFault) -> dict[str, Codes]:
    """Return the exit codes with which each victim may end after a SIGTERM. Call this function before the SIGTERM."""
    return _allowed(
        active,
        {STOPPED_AS_ASKED},
        starting={_BEFORE_IT_LISTENS},
        joining={*WHILE_JOINING, _BEFORE_IT_LISTENS},
    )


def blame(active: ActiveFault, when: str, exit_codes: Mapping[str, int | None], allowed: Mapping[str, Codes]) -> None:
    """If exit codes are not allowed, record them as a finding of this fault, which makes the run fail."""
    others = {node_id: code for node_id, code in exit_codes.items() if code not in allowed[node_id]}
    if others:
        active.record.outcome["finding"] = f"{when}, members ended so (None: not by themselves): {others}"


def _allowed(
    active: ActiveFault, always: set[int | None], *, starting: set[int | None], joining: set[int | None]
) -> dict[str, Codes]:
    return {
        member.node_id: frozenset(
            always | (set() if member.serves() else starting) | (joining if member.is_joining else set())
        )
        for member in active.members
    }

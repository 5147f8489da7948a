"""The bounds on the work and the memory of a hub."""

from __future__ import annotations

from dataclasses import dataclass

from kvstore.protocol.watches import MESSAGE_BYTES_MAX
from kvstore.watch.watcher import GROUP_EVENTS_MAX

STEP_UNITS_MAX = 1 << 20
"""The greatest number of units of one step: about a second of work. No host requests more."""

FOLLOW_EVENTS = 64
"""The number of events that are matched before the units are counted again."""

CATCH_UP_EVENTS = 256
"""The number of events that a cohort reads before the units are counted again."""

SERVE_WATCHERS = 64
"""The number of watchers of one group that are served before the next group is served."""

HUB_EVENTS_MAX = 1 << 20
"""The greatest number of event numbers that all groups together keep (8 MiB). A group that adds a number beyond this
bound drops all its numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubBounds:
    """The bounds of one hub. The simulator draws smaller bounds, so that a few events reach them.

    `step_units_max`: the greatest number of units of one step, even if the host requests more.
    """

    message_bytes_max: int = MESSAGE_BYTES_MAX
    follow_events: int = FOLLOW_EVENTS
    catch_up_events: int = CATCH_UP_EVENTS
    serve_watchers: int = SERVE_WATCHERS
    group_events_max: int = GROUP_EVENTS_MAX
    hub_events_max: int = HUB_EVENTS_MAX
    step_units_max: int = STEP_UNITS_MAX

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            assert getattr(self, name) > 0, name


USUAL_BOUNDS = HubBounds()

"""The coverage points of the access load."""

from __future__ import annotations

OUTDATED = "a command was judged under an earlier auth revision"
CHANGED = "users and roles changed while authentication was on"
SWITCHED_OFF = "authentication was turned off"
DENIED = "a user was refused for a missing right"
BEHIND = "a read was allowed by an earlier state than the newest"
WATCH_DENIED = "the watch of a user ended: permission_denied"
NOT_LET_IN = "a user was not let in"

"""Feature levels: the levels that a build can apply, and the level that a cluster may use (docs/reference/versions.md).

The level *in force* is replicated state: a command in the log raises it, and it never falls. Each member states the
levels of its build in its hello. The level is raised only if the builds of all members know the new level. Commands of
the new level are proposed only after the level was raised. So a member receives a command that it cannot apply only if
an operator has replaced the member's build by an older one. In this case the member stops.

See docs/reference/specification.md#713-feature-levels.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from raft.core.raft import RaftCore
from raft.errors import InvalidConfiguration, RaftError
from raft.node.peer_identity import PeerRefused


@dataclass(frozen=True, slots=True)
class LevelRange:
    """The feature levels that a build can apply, from `lowest` to `highest`. The lowest possible level is 1.

    >>> 2 in LevelRange(1, 3), str(LevelRange(1, 3))
    (True, '1 to 3')
    """

    lowest: int = 1
    highest: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.lowest <= self.highest:
            raise InvalidConfiguration(f"feature levels go from 1 upwards, not from {self.lowest} to {self.highest}")

    def __contains__(self, level: int) -> bool:
        return self.lowest <= level <= self.highest

    def __str__(self) -> str:
        return f"{self.lowest} to {self.highest}" if self.lowest < self.highest else str(self.lowest)


INITIAL_LEVELS = LevelRange()
"""The feature levels of a build that states no levels."""


class LevelRefusal(enum.Enum):
    """The reason why the feature level is not raised. The values do not change between builds."""

    UNKNOWN_LEVEL = "unknown_level"
    """The leader's own build does not know the level."""
    OLD_MEMBER = "old_member"
    """The build of another member, voter or learner, does not know the level."""
    SILENT_MEMBER = "silent_member"
    """A member was not heard lately, so its build is not known."""
    CHANGING = "changing"
    """A membership change is under way."""


class LevelRefused(RaftError):
    """The feature level was not raised, and nothing has changed. `text` states the reason and what to do."""

    def __init__(self, reason: LevelRefusal, text: str) -> None:
        super().__init__(reason, text)
        self.reason, self.text = reason, text

    def __str__(self) -> str:
        return f"the feature level is not raised: {self.text}"


class PeerFeatureLevels:
    """The feature levels that this member's build knows, and the levels that its peers stated in their hellos."""

    def __init__(self, own: LevelRange) -> None:
        self.own = own
        self._by_peer: dict[str, LevelRange] = {}  # Peer id → levels in its newest hello, until the connection is lost.

    def on_hello(self, peer_id: str, levels: LevelRange, in_force: int) -> None:
        """Store the levels that a peer's hello states. Raises PeerRefused if the peer's build does not know the level
        in force."""
        if levels.highest < in_force:
            raise PeerRefused(
                peer_id,
                "feature_level",
                f"its build knows feature level {levels}, and this cluster is at {in_force}, which is final. Start it "
                "with the build of the other members",
            )
        self._by_peer[peer_id] = levels

    def on_disconnect(self, peer_id: str) -> None:
        """Forget the levels of a peer whose connection was lost, because it may come back with another build."""
        self._by_peer.pop(peer_id, None)

    def check_raise(self, level: int, core: RaftCore) -> None:
        """Check that every member, including the learners, can apply `level`. Called on the leader. Raises
        LevelRefused."""
        if level > self.own.highest:
            text = f"{core.node_id} knows {self.own}, not {level}; upgrade every member first"
            raise LevelRefused(LevelRefusal.UNKNOWN_LEVEL, text)
        if core.is_changing:
            raise LevelRefused(LevelRefusal.CHANGING, "a change of the members is under way; wait for its end")
        heard = {peer.peer_id for peer in core.peers_status() if peer.recent_active}
        for member in core.configuration.members:
            peer_id = member.node_id
            if peer_id == core.node_id:
                continue
            levels = self._by_peer.get(peer_id)
            if levels is None or peer_id not in heard:
                text = f"{peer_id} was not heard lately, so its levels are not known; start it, or remove it"
                raise LevelRefused(LevelRefusal.SILENT_MEMBER, text)
            if level > levels.highest:
                text = f"{peer_id} knows {levels}, not {level}; upgrade it first"
                raise LevelRefused(LevelRefusal.OLD_MEMBER, text)

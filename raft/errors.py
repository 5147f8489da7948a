"""The errors of the engine. Each error keeps its fields and builds its text on demand, so that it can be pickled."""

from __future__ import annotations

import enum


class RaftError(Exception):
    """Base of every error of the consensus engine."""


class InvalidConfiguration(RaftError, ValueError):
    """A member list or a setting is invalid; nothing has been changed."""


class NewerBuildNeeded(Exception):
    """Base of the errors for data that only newer builds understand. The data is in a file or comes from a peer.

    The data is valid, so a retry does not help. The member sends no further vote or acknowledgement and stops. A newer
    build can continue with the same data folder. Members send data in a new form only if the feature level in force
    includes that form (docs/reference/versions.md).
    """


class NewerConfiguration(InvalidConfiguration, NewerBuildNeeded):
    """A member list in a form that only newer builds know."""

    def __init__(self, found: int, supported: int) -> None:
        super().__init__(found, supported)
        self.found, self.supported = found, supported

    def __str__(self) -> str:
        return (
            f"a member list of form {self.found}; this build knows up to {self.supported}. Start this member with the "
            "build of the other members"
        )


class ProtocolError(RaftError):
    """A peer violated the protocol. The connection is closed; the node continues."""


class ValidationFault(ProtocolError):
    """The check of a peer's message raised an unexpected exception (`__cause__`), so this build has a bug.

    The check changed nothing, so only the connection is closed. `what` names the checked message or input.
    """

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        cause = self.__cause__
        return f"this build could not validate {self.what} ({type(cause).__name__}: {cause}); please report it"


class NotLeader(RaftError):
    """This member is not the leader, so it refused the request, which had no effect here.

    `leader_id` is the id of the last leader that this member knows; None if it knows no leader. The id may be out of
    date.
    """

    def __init__(self, node_id: str, leader_id: str | None) -> None:
        super().__init__(node_id, leader_id)
        self.node_id, self.leader_id = node_id, leader_id

    def __str__(self) -> str:
        hint = f"the leader is {self.leader_id}" if self.leader_id else "no leader is known; try again shortly"
        return f"{self.node_id} is not the leader: {hint}"


class Busy(RaftError):
    """A bound is reached. The request was refused before any part of it was carried out, so it certainly had no
    effect."""

    def __init__(self, reason: str, limit: int) -> None:
        super().__init__(reason, limit)
        self.reason, self.limit = reason, limit

    def __str__(self) -> str:
        return f"busy: {self.reason} is at its bound of {self.limit}; try again after a pause"


class DiskFull(Busy):
    """This member's disk has no room. The write was refused before any part of it was carried out, so it had no
    effect."""

    def __init__(self, node_id: str) -> None:
        super().__init__("the disk", 0)
        self.args = (node_id,)
        self.node_id = node_id

    def __str__(self) -> str:
        return (
            f"the disk of {self.node_id} is full: writes are refused and reads go on; "
            "make room on it (delete other files, or enlarge it), and writes are accepted again within seconds"
        )


class NoDescriptors(DiskFull):
    """The write was refused because the log must open another file, and no file descriptor is left.

    `words`: the system's message. If the limit of this process was reached, the message includes the limit.
    """

    def __init__(self, node_id: str, words: str) -> None:
        super().__init__(node_id)
        self.args = (node_id, words)
        self.words = words

    def __str__(self) -> str:
        return (
            f"on {self.node_id} {self.words}: writes are refused and reads go on; close connections, or raise the "
            "limit (`ulimit -n`, systemd's `LimitNOFILE=`): writes are accepted within seconds after that"
        )


class TransferUnderWay(Busy):
    """A leadership transfer is under way: the leader proposes nothing until the transfer has succeeded or failed."""

    def __init__(self, peer_id: str) -> None:
        super().__init__("leadership transfer", 1)
        self.args = (peer_id,)
        self.peer_id = peer_id

    def __str__(self) -> str:
        return f"leadership is being handed over to {self.peer_id}: try again within an election time-out"


class TransferRefused(RaftError):
    """The leadership was not transferred, and nothing has changed. `reason`: not_a_peer, not_ready or under_way."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(reason, text)
        self.reason, self.text = reason, text

    def __str__(self) -> str:
        return f"leadership cannot be handed over: {self.text}"


class ChangeRefusal(enum.Enum):
    """The reason why a membership change was refused. The values do not change between builds."""

    PENDING = "pending"
    """Another change is not finished. Only one change runs at a time (Raft §6)."""
    NOT_READY = "not_ready"
    """The leader has committed nothing in its term yet, so its log may hold an older change that is not finished."""
    LAST_VOTER = "last_voter"
    DUPLICATE = "duplicate"
    """The member to add is already a member, the learner to promote is already a voter, or an id or an address is named
    twice."""
    UNKNOWN_MEMBER = "unknown_member"
    USED_ID = "used_id"
    """A removed member had this id and may have voted under it. So no other member may use the id.

    See docs/reference/specification.md#14-removed-ids.
    """
    BEHIND = "behind"
    """The learner to promote lacks too much of the log, or was not heard lately."""
    NO_QUORUM = "no_quorum"
    """The leader has not heard a majority of the new voters lately, so it could not commit the change."""
    TOO_MANY = "too_many"
    NOTHING = "nothing"
    INVALID = "invalid"
    """An id or an address has an invalid form."""
    UNREACHABLE = "unreachable"
    """The leader is the only member so far, and has no address at which a new member could reach it. The server of the
    leader checks the address; the engine does not."""


class ChangeRefused(RaftError):
    """The membership change was refused, and nothing has changed. `text` names the cause.

    `lag`: how many entries the learner lacks, if the reason is BEHIND.
    """

    def __init__(self, reason: ChangeRefusal, text: str, lag: int | None = None) -> None:
        super().__init__(reason, text, lag)
        self.reason, self.text, self.lag = reason, text, lag

    def __str__(self) -> str:
        return f"the members are not changed: {self.text}"


class TooLarge(RaftError):
    """A single item exceeds its bound, so a retry would fail, too. The request certainly had no effect."""

    def __init__(self, what: str, size_bytes: int, size_bytes_max: int) -> None:
        super().__init__(what, size_bytes, size_bytes_max)
        self.what, self.size_bytes, self.size_bytes_max = what, size_bytes, size_bytes_max

    def __str__(self) -> str:
        return f"{self.what} has {self.size_bytes} bytes; the bound is {self.size_bytes_max}"


class TooStale(RaftError):
    """A read of bounded staleness was not served: this member's own state may be older than the bound, and the member
    knows no leader from which it could request a read index.

    `age_ns`: the maximum age (ns) of this member's state; None if the member cannot prove a maximum.
    """

    def __init__(self, node_id: str, age_ns: int | None, age_ns_max: int) -> None:
        super().__init__(node_id, age_ns, age_ns_max)
        self.node_id, self.age_ns, self.age_ns_max = node_id, age_ns, age_ns_max

    def __str__(self) -> str:
        age = "of an age that is not known" if self.age_ns is None else f"up to {self.age_ns / 1e6:.0f} ms old"
        bound = f"the bound is {self.age_ns_max / 1e6:.0f} ms"
        return f"the state of {self.node_id} is {age}, {bound}, and no leader is heard"


class NotCommitted(RaftError):
    """`read_log` was called for an index above the high-water mark. Entries that are not committed are never shown.

    See docs/reference/specification.md#66-reading-the-log.
    """

    def __init__(self, index: int, commit_index: int) -> None:
        super().__init__(index, commit_index)
        self.index, self.commit_index = index, commit_index

    def __str__(self) -> str:
        return f"index {self.index} is not committed: the high-water mark is {self.commit_index}"


class Compacted(RaftError):
    """`read_log` was called for an index whose entry was compacted away."""

    def __init__(self, index: int, first_index: int) -> None:
        super().__init__(index, first_index)
        self.index, self.first_index = index, first_index

    def __str__(self) -> str:
        return f"index {self.index} is compacted: the log begins at {self.first_index}; start from a snapshot"


class StoreFailed(Exception):
    """Base of the errors of a `LogStore` or `SnapshotStore` that is damaged or has failed.

    After such an error, or after an OSError, the node sends no further votes or acknowledgements and stops.

    See docs/reference/specification.md#37-failed-sync.
    """


ENDING_ERRORS = (OSError, StoreFailed, NewerBuildNeeded)
"""After one of these errors a node sends no further votes or acknowledgements and stops."""


class NodeStopped(RaftError):
    """The node was stopped, its disk failed, an invariant broke, or it needs a newer build. The node takes no more
    requests and sends no further votes or acknowledgements until it is restarted.

    See docs/reference/specification.md#37-failed-sync.
    """

    def __init__(self, node_id: str, reason: str) -> None:
        super().__init__(node_id, reason)
        self.node_id, self.reason = node_id, reason

    def __str__(self) -> str:
        return f"node {self.node_id} has stopped: {self.reason}"

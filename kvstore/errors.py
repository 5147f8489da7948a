"""The errors of operations on the store, classified by whether the operation has taken effect.

`OperationFailed` means that the operation had no effect and never will have one. `OutcomeUnknown` means that the
operation may have taken effect. `UnderReplicated`, which only a write of level IN_SYNC can raise, means that the
operation has taken effect. No other error is raised for an operation.

A `KvError` is an `OperationFailed` that the replicated store itself returns. A result contains the error as `(code,
revision, field...)`, with the fields in the order of the constructor. Only codes, numbers and stable words are
replicated, never the text of an error, so two builds with different texts still have the same state.

Eight classes have the same names as errors of `raft`. The errors of `raft` are raised inside a member. The classes in
this module report them to a client. Each of the eight classes is an `OperationFailed` with a hint for the user of the
store. Their fields have the units of the wire format. Reasons are strings, not enums, because a newer member may send a
reason that the enums of this build lack.

The fields of an error are its positional arguments, so every error can be pickled, and can be sent as its code and
fields.

See docs/reference/specification.md#95-outcomes.
"""

from __future__ import annotations

import enum
import re
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from storage import FolderLocked as FolderLocked
    from storage import NotInitialized as NotInitialized
    from storage import StorageError as StorageError

__all__ = [
    "AccessDenied",
    "AccessReason",
    "AccessRefused",
    "AuthRevisionOld",
    "Busy",
    "CannotServe",
    "ChangeRefused",
    "ClientClosed",
    "Compacted",
    "GroupMismatch",
    "InternalError",
    "InvalidAddress",
    "InvalidRequest",
    "KvError",
    "LeadershipLost",
    "LeaseExists",
    "LeaseLost",
    "LeaseNotFound",
    "LevelRefused",
    "LevelTooLow",
    "LimitsRefused",
    "LockLost",
    "LockTimeout",
    "NotANumber",
    "NotCommitted",
    "NotEnoughInSync",
    "OperationFailed",
    "OutcomeUnknown",
    "PermissionDenied",
    "PositionConflict",
    "QuotaExceeded",
    "ReachableByOthers",
    "Reason",
    "RequestClosed",
    "RequestTooLarge",
    "ResponseTooLarge",
    "ResultCode",
    "RevisionAhead",
    "RevisionCompacted",
    "SessionExpired",
    "StoreBusy",
    "StoreError",
    "TooStale",
    "TransactionConflict",
    "TransferRefused",
    "Unauthenticated",
    "Unavailable",
    "UnderReplicated",
    "Unsupported",
    "UnusableFile",
    "WrongContext",
]

OF_A_FOLDER = ("FolderLocked", "NotInitialized", "StorageError")
"""The errors of `storage` that `open_node` raises, loaded on first use. A client needs no `storage`."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Load an error of a data folder when a program first uses its name."""
        if name not in OF_A_FOLDER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import storage

        return getattr(storage, name)


CALL_NOTE = "the call: "
"""The beginning of the note that names the call."""


class StoreError(Exception):
    """Base of every error of the store."""

    @property
    def word(self) -> str:
        """A stable name for programs and recorded histories: `outcome_unknown`, `busy`, …"""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()

    @property
    def hint(self) -> str:
        """A short remedy; empty if the text of the error already contains the remedy."""
        return ""

    def add_note(self, note: str) -> None:
        """Add a line to the error, which tracebacks show."""
        self._notes = [*self._own_notes, note]

    def name_call(self, words: str) -> None:
        """Make `words` the name of the call, such as `lock b'report'`, in the note that names a part of this call."""
        self._notes = [f"{CALL_NOTE}{words}", *(note for note in self._own_notes if not note.startswith(CALL_NOTE))]

    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]
        """The lines that tracebacks show after the text: the notes, and the hint."""
        return [*self._own_notes, f"hint: {self.hint}"] if self.hint else self._own_notes

    @property
    def _own_notes(self) -> list[str]:
        return getattr(self, "_notes", [])


class UnusableFile(StoreError):
    """A file that a client or a member needs cannot be used. `reason` names the file."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class OperationFailed(StoreError):
    """The operation certainly had no effect, and never will have one."""


class OutcomeUnknown(StoreError):
    """The operation may have taken effect, or may take effect later, or never. The client can no longer find out the
    outcome."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the outcome is unknown: {self.reason}"

    @property
    def hint(self) -> str:
        return "it may have happened; read the key before you repeat it"


class Unavailable(OperationFailed):
    """No member accepted the operation before its deadline, or a read got no answer.

    `reason`: why. If the client knows several addresses, it shows how many of them were tried, and what each of them
    said last, for at most five addresses. `remedy`: a hint that fits better than the general hint; empty if there is
    none.
    """

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason, remedy)
        self.reason, self.remedy = reason, remedy

    def __str__(self) -> str:
        return f"unavailable: {self.reason}"

    @property
    def hint(self) -> str:
        default = "check the addresses; a majority of the members must be up and reach each other (`hwm status`)"
        return self.remedy or default


class Busy(OperationFailed):
    """All attempts before the deadline were refused, because a bound was reached."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"busy: {self.reason}"

    @property
    def hint(self) -> str:
        return "try again after a pause"


ADDRESS_CHARACTERS_SHOWN_MAX = 300
"""How many characters of a refused address the error text shows. The longest valid address has fewer characters."""


class InvalidAddress(OperationFailed, ValueError):
    """An address is not valid, so no connection to it can be made."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address, self.reason = address, reason

    def __str__(self) -> str:
        address, characters_max = self.address, ADDRESS_CHARACTERS_SHOWN_MAX
        shown = address if len(address) <= characters_max else f"{address[:characters_max]}…"
        return f"address {shown!r}: {self.reason}"

    @property
    def hint(self) -> str:
        return "an address is host:port, such as 127.0.0.1:7101"


class RequestTooLarge(OperationFailed):
    """The request is larger than the largest frame."""

    def __init__(self, size_bytes: int, size_bytes_max: int) -> None:
        super().__init__(size_bytes, size_bytes_max)
        self.size_bytes, self.size_bytes_max = size_bytes, size_bytes_max

    def __str__(self) -> str:
        return f"the request has {self.size_bytes} bytes; the bound is {self.size_bytes_max}"


class Unsupported(OperationFailed):
    """This member does not know the request, or does not offer this kind of request (as with `lease` reads)."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return f"not supported by this member: {self.what}"


class TransferRefused(OperationFailed):
    """The leader has refused to transfer its leadership (`reason`: not_a_peer, not_ready or under_way), or no member
    took over before the deadline (too_late). After `too_late`, the transfer may still happen."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(reason, text)
        self.reason, self.text = reason, text

    def __str__(self) -> str:
        return f"leadership was not handed over: {self.text}"


class ChangeRefused(OperationFailed):
    """The members were not changed. `reason` is a stable word (the values of `raft.ChangeRefusal`): pending, not_ready,
    last_voter, duplicate, unknown_member, used_id, behind, no_quorum, too_many, nothing, invalid, unreachable.

    `lag`: the number of entries that a learner lacks, if the reason is `behind`; otherwise None. `remedy`: a hint that
    fits better than the usual hint for the reason; empty if there is none.
    """

    def __init__(self, reason: str, text: str, lag: int | None = None, remedy: str = "") -> None:
        super().__init__(reason, text, lag, remedy)
        self.reason, self.text, self.lag, self.remedy = reason, text, lag, remedy

    def __str__(self) -> str:
        return f"the members are not changed: {self.text}"

    @property
    def hint(self) -> str:
        return self.remedy or _CHANGE_HINTS.get(self.reason, "")

    @property
    def is_passing(self) -> bool:
        """True if the same change may be accepted later without any action by the caller."""
        return self.reason in ("pending", "not_ready", "behind", "no_quorum")


_CHANGE_HINTS = {
    "behind": "a learner that is silent must be started, with `hwm serve DIR --join`; one that lags needs time",
    "no_quorum": "start the members that are down, or replace them one at a time (`hwm member replace`)",
    "used_id": "`hwm init DIR --join` with an id that no member ever had, then `hwm member add` or `replace`",
    "last_voter": "add and promote another member first",
    "unknown_member": "`hwm member list` shows who there is",
}


class LimitsRefused(OperationFailed):
    """The replicated limits were not changed. `remedy`: "force" if the change is possible with `force`; else empty."""

    def __init__(self, text: str, remedy: str = "") -> None:
        super().__init__(text, remedy)
        self.text, self.remedy = text, remedy

    def __str__(self) -> str:
        return f"the limits are not changed: {self.text}"

    @property
    def hint(self) -> str:
        if self.remedy != "force":
            return "`hwm limits` shows the limits and how much of each is used"
        return "requests are refused while the use is above a limit; to set it anyway: `--force` (`force=True`)"


class LevelRefused(OperationFailed):
    """The feature level was not raised. `reason`: unknown_level, old_member, silent_member, changing or final."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(reason, text)
        self.reason, self.text = reason, text

    def __str__(self) -> str:
        return f"the feature level is not raised: {self.text}"

    @property
    def hint(self) -> str:
        return "`hwm status` shows the level in force, and what each member's build knows"


class LevelTooLow(OperationFailed):
    """The operation needs feature level `level`, and a lower level is in force in the cluster. Nothing was done."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.level = level

    def __str__(self) -> str:
        return f"this needs feature level {self.level}, and a lower level is in force in the cluster"

    @property
    def hint(self) -> str:
        return "run a build that knows the level on every member (`hwm status` shows the levels), then `hwm upgrade`"


class TransactionConflict(OperationFailed):
    """A read-modify-write transaction was not carried out: at each attempt, another client changed the data between the
    read and the write."""

    def __init__(self, attempts: int) -> None:
        super().__init__(attempts)
        self.attempts = attempts

    def __str__(self) -> str:
        return f"the transaction was not carried out: its reads had changed at each of {self.attempts} attempts"

    @property
    def hint(self) -> str:
        return "read fewer keys in it, give it more attempts, or let a lock order its writers"


class LockTimeout(OperationFailed):
    """A lock, a permit, a leadership, or an item of a work queue was not obtained within `wait_seconds`. The caller
    does not hold it. `is_own`: another block of the same client holds the lock. `what`: what was not obtained, such as
    `lock b'report'`; empty for a name alone."""

    def __init__(self, name: bytes, wait_seconds: float, is_own: bool = False, what: str = "") -> None:
        super().__init__(name, wait_seconds, is_own, what)
        self.name, self.wait_seconds, self.is_own, self.what = name, wait_seconds, is_own, what

    def name_what(self, what: str) -> None:
        """Name what was not obtained, unless it is named already."""
        self.what = self.what or what
        self.args = (self.name, self.wait_seconds, self.is_own, self.what)

    def __str__(self) -> str:
        what = self.what or f"{self.name!r:.80}"
        why = "another block of this client holds it" if self.is_own else "others hold it, or came earlier"
        return f"{what} was not obtained within {self.wait_seconds:g} s: {why}"

    @property
    def hint(self) -> str:
        if self.is_own:
            return "a lock is not taken a second time by its holder: leave the outer block first, or use its lock"
        return "the keys below this name show who holds it and who waits; try again, or wait for longer"


class LockLost(OperationFailed):
    """A guarded transaction was not carried out, because the caller no longer owns the guarding key.

    `fence`: the create revision that the key had while the caller owned it.
    """

    def __init__(self, key: bytes, fence: int) -> None:
        super().__init__(key, fence)
        self.key, self.fence = key, fence

    def __str__(self) -> str:
        return (
            f"nothing was done: {self.key!r:.80} with create revision {self.fence} no longer exists, because its "
            "lease has ended or it was given up"
        )

    @property
    def hint(self) -> str:
        return "stop the work that the lock protects, obtain the lock again, and read the state again"


class LeadershipLost(LockLost):
    """An elected leader has lost its leadership. Its transaction was not carried out, or its `Leadership.term` has
    ended."""

    def __str__(self) -> str:
        return (
            f"the leadership is lost: the key of this leader, {self.key!r:.80} with create revision {self.fence}, no "
            "longer exists, because its lease has ended or it was given up; a guarded transaction was not carried out"
        )

    @property
    def hint(self) -> str:
        return "stop the work of the leader, campaign again, and read the state again"


class PositionConflict(OperationFailed):
    """The position of a consumer group was not moved, and nothing was written.

    Either the records up to `wanted` are committed already, or another program has changed the stored position, so that
    it differs from `expected`. `found`: the stored position; None if it was removed.
    """

    def __init__(self, group: bytes, wanted: int, expected: int, found: int | None) -> None:
        super().__init__(group, wanted, expected, found)
        self.group, self.wanted, self.expected, self.found = group, wanted, expected, found

    def __str__(self) -> str:
        found = "gone" if self.found is None else str(self.found)
        return (
            f"nothing was done: group {self.group!r:.80} was to move from position {self.expected} to {self.wanted}, "
            f"and its position is {found}"
        )

    @property
    def hint(self) -> str:
        return "do not handle these records again; enter a new block of `consume`, which reads the position"


class GroupMismatch(OperationFailed):
    """A consumer group in the store differs from the group that a program has named. `reason` states the difference.
    The program has not joined the group."""

    def __init__(self, group: bytes, reason: str) -> None:
        super().__init__(group, reason)
        self.group, self.reason = group, reason

    def __str__(self) -> str:
        return f"consumer group {self.group!r:.80}: {self.reason}"

    @property
    def hint(self) -> str:
        return "all members of a group name the same prefix and shares; `hwm group NAME` shows them"


class LeaseLost(StoreError):
    """The block of a lease was cancelled, because the lease has ended or may have ended.

    Actions that the block took before its cancellation are not undone. The store has removed the keys of the lease, or
    will remove them. `what`: what is lost with the lease, such as `lock b'report'`; empty for a lease alone.
    """

    def __init__(self, lease_id: int, reason: str, what: str = "") -> None:
        super().__init__(lease_id, reason, what)
        self.lease_id, self.reason, self.what = lease_id, reason, what

    def name_what(self, what: str) -> None:
        """Name what is lost with the lease, unless it is named already."""
        self.what = self.what or what
        self.args = (self.lease_id, self.reason, self.what)

    def __str__(self) -> str:
        if self.what:
            return f"{self.what} is lost, with its lease {self.lease_id}: {self.reason}"
        return f"lease {self.lease_id} is lost: {self.reason}"

    @property
    def hint(self) -> str:
        if self.what:
            return "stop the work that depends on it, because another program may have it; then enter a new block"
        return "another owner may have what it protected; begin again with a new lease"


class AccessDenied(OperationFailed):
    """Base of the errors with which a member refuses a request because it knows no right of the caller to make the
    request. Nothing was done."""


class Unauthenticated(AccessDenied):
    """Authentication is on, and the member does not know the user of the caller.

    `reason`: a stable word: missing (no user was named; `user` is then the name in the caller's certificate, which is
    no user, or empty), refused (there is no such user, or the password is wrong), outdated (the user was removed or has
    got another password, or authentication was turned on), or expired (a token is too old).
    """

    def __init__(self, reason: str, user: str = "") -> None:
        super().__init__(reason, user)
        self.reason, self.user = reason, user

    def __str__(self) -> str:
        nobody = f"the certificate names {self.user!r}, which is no user" if self.user else "the request names no user"
        texts = {
            "missing": f"authentication is on, and {nobody}",
            "refused": f"there is no user {self.user!r}, or the password is wrong",
            "outdated": f"user {self.user!r} must authenticate again: the user or the password has changed",
            "expired": f"the token of user {self.user!r} is too old",
        }
        return f"not authenticated: {texts.get(self.reason, self.reason)}"

    @property
    def hint(self) -> str:
        named = "name a user and the password (`--user`, `--password-file`; `Client(user=…, password=…)`)"
        if self.reason == "missing" and self.user:
            return f"add this user (`hwm user add {shlex.quote(self.user)} --no-password`), or {named}"
        return named


class PermissionDenied(AccessDenied):
    """A user lacks a right. `needs`: read, write or root. `start`, `end`: the keys for which the right is needed.

    `start` is None if the request is not about keys, and `end` is None for a range without end.
    """

    def __init__(self, user: str, needs: str, start: bytes | None = None, end: bytes | None = None) -> None:
        super().__init__(user, needs, start, end)
        self.user, self.needs, self.start, self.end = user, needs, start, end

    def __str__(self) -> str:
        if self.start is None:
            return f"permission denied: this needs the role {self.needs}, which user {self.user!r} does not have"
        where = f"{self.start!r:.80}"
        if self.end != self.start + b"\0":
            where = f"{where} to " + ("the last key" if self.end is None else f"before {self.end!r:.80}")
        return f"permission denied: user {self.user!r} has no right to {self.needs} {where}"

    @property
    def hint(self) -> str:
        return "`hwm user list` and `hwm role list` show the rights; the user root may grant more (`hwm role grant`)"


class InternalError(OperationFailed):
    """An unexpected error occurred in a member before the request was carried out. The request certainly had no effect.

    The client does not send the request to other members, because the same error is expected on all of them.
    """

    def __init__(self, node_id: str, reason: str) -> None:
        super().__init__(node_id, reason)
        self.node_id, self.reason = node_id, reason

    def __str__(self) -> str:
        return f"internal error of member {self.node_id}, certainly not carried out: {self.reason}"

    @property
    def hint(self) -> str:
        return "do not repeat it, it would fail the same way; please report it with the traceback in that member's log"


class NotEnoughInSync(OperationFailed):
    """A write of level IN_SYNC was refused, because fewer voters than `min_in_sync` are in sync. Nothing was written.

    `in_sync`: the ids of the members in sync.
    """

    def __init__(self, in_sync: Sequence[str], min_in_sync: int) -> None:
        super().__init__(tuple(in_sync), min_in_sync)
        self.in_sync, self.min_in_sync = tuple(in_sync), min_in_sync

    def __str__(self) -> str:
        names = ", ".join(self.in_sync) or "none"
        return f"not written: min_in_sync is {self.min_in_sync}, and the members in sync are only: {names}"

    @property
    def hint(self) -> str:
        return "bring the other members back (`hwm status`), write at level MAJORITY, or lower min_in_sync"


class UnderReplicated(StoreError):
    """A write of level IN_SYNC has taken effect, but fewer members than `min_in_sync` have confirmed the write as
    durable.

    After the write was appended, members fell out of sync, or the leader changed. A majority holds the write durably.
    `result`: the result of the write. `acknowledged_by`: the ids of the members that certainly hold the write.
    """

    def __init__(self, result: object, acknowledged_by: Sequence[str], min_in_sync: int) -> None:
        super().__init__(result, tuple(acknowledged_by), min_in_sync)
        self.result, self.acknowledged_by, self.min_in_sync = result, tuple(acknowledged_by), min_in_sync

    def __str__(self) -> str:
        names = ", ".join(self.acknowledged_by)
        return f"written, but min_in_sync is {self.min_in_sync}, and the known holders are only: {names}"

    @property
    def hint(self) -> str:
        return "do not repeat it: it has taken effect, and the other members get it when they are back"


class TooStale(OperationFailed):
    """No member could prove that its state is recent enough for a bounded read, and no member knew a leader.

    `age_ms`: the greatest possible age of the state of the last member that was asked; None if that member could prove
    no age.
    """

    def __init__(self, age_ms: int | None, max_staleness_ms: int) -> None:
        super().__init__(age_ms, max_staleness_ms)
        self.age_ms, self.max_staleness_ms = age_ms, max_staleness_ms

    def __str__(self) -> str:
        age = "of an age that is not known" if self.age_ms is None else f"up to {self.age_ms} ms old"
        return f"the state of the member is {age}, the bound is {self.max_staleness_ms} ms, and no leader is heard"


class NotCommitted(OperationFailed):
    """`read_log` was called for an index above the high-water mark. Entries above the mark are never shown.

    See docs/reference/specification.md#66-reading-the-log.
    """

    def __init__(self, index: int, commit_index: int) -> None:
        super().__init__(index, commit_index)
        self.index, self.commit_index = index, commit_index

    def __str__(self) -> str:
        return f"index {self.index} is not committed: the high-water mark is {self.commit_index}"


class Compacted(OperationFailed):
    """`read_log` was called for an index that the log no longer contains."""

    def __init__(self, index: int, first_index: int) -> None:
        super().__init__(index, first_index)
        self.index, self.first_index = index, first_index

    def __str__(self) -> str:
        return f"index {self.index} is compacted: the log begins at {self.first_index}"


class ClientClosed(OperationFailed):
    """The client is closed, or was never entered (`async with`). The operation was not sent."""

    def __str__(self) -> str:
        return "the client or its watch is closed, or was not entered yet (`async with`; in plain threads `with`)"


class WrongContext(OperationFailed, RuntimeError):
    """A client was used outside of its event loop or in a forked process, or was entered a second time; a block was
    entered in a wrong form, such as `with` instead of `async with`; a task has taken a lock that it holds; or two tasks
    read one watch.

    Nothing was sent. This error is a mistake in the program. `reason` describes the mistake and the correct use.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class CannotServe(StoreError):
    """A port could not be opened. `purpose`: clients, peers or metrics."""

    def __init__(self, purpose: str, address: str, reason: str) -> None:
        super().__init__(purpose, address, reason)
        self.purpose, self.address, self.reason = purpose, address, reason

    def __str__(self) -> str:
        return f"cannot listen for {self.purpose} on {self.address}: {self.reason}"

    @property
    def hint(self) -> str:
        option = {"peers": "listen-peer", "metrics": "metrics"}.get(self.purpose, "listen-client")
        argument = "" if self.purpose == "metrics" else f" (`{option.replace('-', '_')}=` of open_node)"
        return f"stop what uses the port, or name another address with --{option}{argument}"


class ReachableByOthers(StoreError):
    """A port without TLS would be reachable from other machines."""

    def __init__(self, purpose: str, address: str) -> None:
        super().__init__(purpose, address)
        self.purpose, self.address = purpose, address

    def __str__(self) -> str:
        return (
            f"the port for {self.purpose} would listen on {self.address}, where other machines may reach it, without "
            "encryption or authentication"
        )

    @property
    def hint(self) -> str:
        option = "--peer-cert and --peer-ca" if self.purpose == "peers" else "--tls-cert"
        return (
            f"give it certificates ({option}; `tls=` of open_node), listen on 127.0.0.1, or say --insecure "
            "(`insecure=True`) if the network is yours alone"
        )


class ResultCode(enum.IntEnum):
    """The first item of every result. Existing snapshots contain these numbers. New numbers may be added, but no number
    may change."""

    OK = 0
    INVALID_REQUEST = 1
    QUOTA_EXCEEDED = 2
    BUSY = 3
    SESSION_EXPIRED = 4
    REQUEST_CLOSED = 5
    REVISION_COMPACTED = 6
    REVISION_AHEAD = 7
    RESPONSE_TOO_LARGE = 8
    LEASE_NOT_FOUND = 9
    LEASE_EXISTS = 10
    NOT_A_NUMBER = 11
    AUTH_REVISION_OLD = 12
    ACCESS_REFUSED = 13


class Reason(enum.StrEnum):
    """The reason why a request is invalid. Existing snapshots contain these texts. New texts may be added, but no text
    may change."""

    MALFORMED = "malformed"
    UNKNOWN_KIND = "unknown_kind"
    KEY_EMPTY = "key_empty"
    KEY_WRITTEN_TWICE = "key_written_twice"
    OUT_OF_RANGE = "out_of_range"
    SESSION_REQUIRED = "session_required"
    KEY_NOT_FOUND = "key_not_found"
    TOO_MANY_KEYS = "too_many_keys"
    NESTED_TOO_DEEP = "nested_too_deep"
    LEASE_IS_FULL = "lease_is_full"
    NAME_INVALID = "name_invalid"
    # The reasons below occur only at admission. Their bounds are configured on the member that received the request.
    KEY_TOO_LONG = "key_too_long"
    VALUE_TOO_LONG = "value_too_long"
    TOO_MANY_OPERATIONS = "too_many_operations"
    TRANSACTION_TOO_LARGE = "transaction_too_large"


_REASON_TEXTS = {
    Reason.MALFORMED: "it does not have the shape of any command (docs/reference/specification.md#82-commands)",
    Reason.UNKNOWN_KIND: "its kind is not known at this feature level; upgrade members, or use an older client",
    Reason.KEY_EMPTY: "a key needs at least one byte",
    Reason.KEY_WRITTEN_TWICE: "one key is written twice in one branch; remove one of the writes",
    Reason.OUT_OF_RANGE: "a number in it is out of its range",
    Reason.SESSION_REQUIRED: "only a session can do this; register one first",
    Reason.KEY_NOT_FOUND: "a put that keeps the value or the lease needs a key that exists",
    Reason.TOO_MANY_KEYS: "the ranges that it deletes or compares have too many keys together; use narrower ranges,"
    " or let an operator raise delete_keys_max for deletions",
    Reason.LEASE_IS_FULL: "the lease can have no more keys; attach the key to another lease, or let an operator raise"
    " delete_keys_max",
    Reason.NAME_INVALID: "the name of a user or a role has 1 to 64 bytes, without blanks and control characters",
    Reason.NESTED_TOO_DEEP: "transactions are nested too deep",
    Reason.KEY_TOO_LONG: "a key is too long",
    Reason.VALUE_TOO_LONG: "a value is too long; split it over several keys",
    Reason.TOO_MANY_OPERATIONS: "a transaction has too many comparisons and operations; split it",
    Reason.TRANSACTION_TOO_LARGE: "a transaction has too many bytes; split it",
}


class KvError(OperationFailed):
    """Base of every error that the replicated store itself returns. The request certainly had no effect."""

    code: ClassVar[ResultCode]


class InvalidRequest(KvError):
    """The request is not valid, or exceeds a bound. Admission refuses such a request if possible; otherwise it is
    refused when it is applied.

    If the reason is a bound, `size` is the size of the request and `size_max` the bound; otherwise both are None.
    `text`: a description that only the client can give, such as the name of an argument that is out of range. The text
    is never sent.
    """

    code = ResultCode.INVALID_REQUEST

    def __init__(
        self, reason: Reason | str, size: int | None = None, size_max: int | None = None, *, text: str = ""
    ) -> None:
        self.reason, self.size, self.size_max, self.text = Reason(reason), size, size_max, text
        # Results are made of `args`, so all items are plain values. If there is no bound, `args` contains only the
        # reason.
        super().__init__(self.reason.value, *(() if size_max is None else (size, size_max)))

    def __str__(self) -> str:
        bound = "" if self.size_max is None else f" ({self.size}; the bound is {self.size_max})"
        if self.text:
            return f"invalid request: {self.text}"
        return f"invalid request: {_REASON_TEXTS[self.reason]}{bound}"


class QuotaExceeded(KvError):
    """The write would make the store grow past its quota. Stored bytes are Σ(len(key) + len(value) + 64)."""

    code = ResultCode.QUOTA_EXCEEDED

    def __init__(self, stored_bytes: int, quota_bytes: int) -> None:
        super().__init__(stored_bytes, quota_bytes)
        self.stored_bytes, self.quota_bytes = stored_bytes, quota_bytes  # `stored_bytes` includes this write.

    def __str__(self) -> str:
        return (
            f"quota exceeded: the store would hold {self.stored_bytes} bytes; the quota is {self.quota_bytes}. "
            "Delete keys, or raise the quota"
        )


class StoreBusy(KvError):
    """A replicated limit is reached. The request was not carried out, and its session keeps no result. `bound`: the
    name of the limit."""

    code = ResultCode.BUSY

    def __init__(self, bound: str, limit: int) -> None:
        super().__init__(bound, limit)
        self.bound, self.limit = bound, limit

    def __str__(self) -> str:
        return f"busy: {self.bound} is {self.limit}; acknowledge results, or close sessions or leases, then try again"


class SessionExpired(KvError):
    """The session has expired, was closed, or never existed. The outcomes of its open requests are unknown. Begin a new
    session."""

    code = ResultCode.SESSION_EXPIRED

    def __init__(self, session_id: int) -> None:
        super().__init__(session_id)
        self.session_id = session_id

    def __str__(self) -> str:
        return (
            f"session {self.session_id} has expired or was closed; the outcomes of its open requests are unknown. "
            "Register a new session, and never retry these requests in it"
        )


class RequestClosed(KvError):
    """The client has acknowledged this request number. The result of the request is dropped, and a request with this
    number is not executed."""

    code = ResultCode.REQUEST_CLOSED

    def __init__(self, request_no: int, floor: int) -> None:
        super().__init__(request_no, floor)
        self.request_no, self.floor = request_no, floor

    def __str__(self) -> str:
        return f"request {self.request_no} is closed: all up to {self.floor} were acknowledged. Use a new number"


class RevisionCompacted(KvError):
    """A read, a watch or a compaction named a revision that is no longer kept. A listing has to start again."""

    code = ResultCode.REVISION_COMPACTED

    def __init__(self, revision: int, compact_revision: int) -> None:
        super().__init__(revision, compact_revision)
        self.revision, self.compact_revision = revision, compact_revision

    def __str__(self) -> str:
        return (
            f"revision {self.revision} is compacted: the oldest that can be read is {self.compact_revision}. "
            "Start the listing again"
        )


class RevisionAhead(KvError):
    """A read or a compaction named a revision that this member has not reached. Send the request to another member, or
    later."""

    code = ResultCode.REVISION_AHEAD

    def __init__(self, revision: int, store_revision: int) -> None:
        super().__init__(revision, store_revision)
        self.revision, self.store_revision = revision, store_revision

    def __str__(self) -> str:
        return f"revision {self.revision} is ahead of this member, which is at {self.store_revision}. Try again later"


class ResponseTooLarge(KvError):
    """The results of a transaction or a get do not fit in one response. Read less at once."""

    code = ResultCode.RESPONSE_TOO_LARGE

    def __init__(self, bytes_max: int) -> None:
        super().__init__(bytes_max)
        self.bytes_max = bytes_max

    def __str__(self) -> str:
        return f"the results of this transaction have more than {self.bytes_max} bytes; read less in one transaction"


class LeaseNotFound(KvError):
    """No lease has this id: it has expired, was revoked, or never existed."""

    code = ResultCode.LEASE_NOT_FOUND

    def __init__(self, lease_id: int) -> None:
        super().__init__(lease_id)
        self.lease_id = lease_id

    def __str__(self) -> str:
        return f"there is no lease {self.lease_id}: it has expired, was revoked, or never existed. Grant a new one"


class LeaseExists(KvError):
    """No lease was granted, because another lease has the requested id."""

    code = ResultCode.LEASE_EXISTS

    def __init__(self, lease_id: int) -> None:
        super().__init__(lease_id)
        self.lease_id = lease_id

    def __str__(self) -> str:
        return f"lease {self.lease_id} exists already. Choose another id, or 0 to have the store pick one"


class NotANumber(KvError):
    """An add was refused, because the value or the sum is not a decimal integer of 64 bits."""

    code = ResultCode.NOT_A_NUMBER

    def __init__(self, key: bytes) -> None:
        super().__init__(key)
        self.key = key

    def __str__(self) -> str:
        return f"nothing can be added to the value of {self.key!r:.80}: it or the sum is not a decimal 64-bit integer"


class AuthRevisionOld(KvError):
    """The command was checked under an auth revision that is no longer in force. The command is sent again, and checked
    under the new revision.

    `auth_revision`: the revision under which the command was checked; 0 if authentication was off. `in_force`: the
    present auth revision.
    """

    code = ResultCode.AUTH_REVISION_OLD

    def __init__(self, auth_revision: int, in_force: int) -> None:
        super().__init__(auth_revision, in_force)
        self.auth_revision, self.in_force = auth_revision, in_force

    def __str__(self) -> str:
        return (
            f"users or roles have changed while the command was under way: it was judged at auth revision "
            f"{self.auth_revision}, and {self.in_force} is in force. Send it again"
        )


class AccessReason(enum.StrEnum):
    """The reason why users and roles were not changed. Existing snapshots contain these texts. New texts may be added,
    but no text may change."""

    USER_EXISTS = "user_exists"
    USER_NOT_FOUND = "user_not_found"
    ROLE_EXISTS = "role_exists"
    ROLE_NOT_FOUND = "role_not_found"
    ROLE_NOT_GRANTED = "role_not_granted"
    RANGE_NOT_GRANTED = "range_not_granted"
    ROOT_NEEDED = "root_needed"
    ROOT_IS_FIXED = "root_is_fixed"
    IS_ENABLED = "is_enabled"
    IS_DISABLED = "is_disabled"
    TOO_MANY_USERS = "too_many_users"
    TOO_MANY_ROLES = "too_many_roles"
    TOO_MANY_RANGES = "too_many_ranges"


_ACCESS_TEXTS = {
    AccessReason.USER_EXISTS: "user {0!r} exists already",
    AccessReason.USER_NOT_FOUND: "there is no user {0!r}",
    AccessReason.ROLE_EXISTS: "role {0!r} exists already",
    AccessReason.ROLE_NOT_FOUND: "there is no role {0!r}",
    AccessReason.ROLE_NOT_GRANTED: "the user does not have the role {0!r}",
    AccessReason.RANGE_NOT_GRANTED: "the role {0!r} has no rights on exactly this range",
    AccessReason.ROOT_NEEDED: "while authentication is on, there is a user {0!r} with the role {0!r}; add them first",
    AccessReason.ROOT_IS_FIXED: "the role {0!r} always has every right, and cannot be changed or removed",
    AccessReason.IS_ENABLED: "authentication is on already",
    AccessReason.IS_DISABLED: "authentication is off already",
    AccessReason.TOO_MANY_USERS: "user {0!r} is one more than USERS_MAX (10,000); remove others first",
    AccessReason.TOO_MANY_ROLES: "{0!r} is or has one role more than ROLES_MAX (1,000) or ROLES_PER_USER_MAX (100)",
    AccessReason.TOO_MANY_RANGES: "role {0!r} has RANGES_PER_ROLE_MAX (1,000) ranges; grant wider ranges",
}


class AccessRefused(KvError):
    """Users and roles were not changed. `name`: the user or the role that the reason is about."""

    code = ResultCode.ACCESS_REFUSED

    def __init__(self, reason: AccessReason | str, name: str) -> None:
        self.reason, self.name = AccessReason(reason), name
        super().__init__(self.reason.value, name)

    def __str__(self) -> str:
        return f"users and roles are not changed: {_ACCESS_TEXTS[self.reason].format(self.name)}"

    @property
    def hint(self) -> str:
        return "`hwm user list` and `hwm role list` show what there is"


REFUSALS: dict[ResultCode, type[KvError]] = {
    error.code: error
    for error in (
        InvalidRequest,
        QuotaExceeded,
        StoreBusy,
        SessionExpired,
        RequestClosed,
        RevisionCompacted,
        RevisionAhead,
        ResponseTooLarge,
        LeaseNotFound,
        LeaseExists,
        NotANumber,
        AuthRevisionOld,
        AccessRefused,
    )
}
"""The error class of each code. An error is built from the fields that follow (code, revision) in a result."""


def refusal_of(code: int, fields: Sequence[object]) -> KvError:
    """Build the error that a result describes. Raises ValueError or TypeError if the result describes no error."""
    return REFUSALS[ResultCode(code)](*fields)

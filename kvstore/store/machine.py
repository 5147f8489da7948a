"""The replicated state machine, which applies committed entries and returns results
(docs/reference/specification.md#8-store).

The state machine is deterministic: it uses no clock, no randomness, and no configuration except the replicated limits.
Every command of a client gets a result, even an invalid command, and the result is the same on every member. The member
stops only at an entry that no build at the present feature level can have proposed (`UnreadablePayload`,
`UnsupportedFeatureLevel`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from kvstore.access.state import NO_ACCESS_STATE, AccessState
from kvstore.errors import (
    AccessRefused,
    AuthRevisionOld,
    LeaseExists,
    LeaseNotFound,
    Reason,
    ResultCode,
    RevisionAhead,
    RevisionCompacted,
    SessionExpired,
    StoreBusy,
)
from kvstore.fast_paths import FAST_PATHS
from kvstore.limits import (
    ACCESS_LEVEL,
    FEATURE_LEVEL_INITIAL,
    FEATURE_LEVELS,
    HISTORY_LEVEL,
    ITEM_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    RESPONSE_BYTES_MAX,
    StoreLimits,
)
from kvstore.protocol.commands import (
    ACCESS_KINDS,
    ENABLE_MARK,
    JUDGED_ITEMS,
    CommandKind,
    Range,
    UnreadablePayload,
    command_body,
    decode_payload,
    decode_payloads,
    judged_command,
    judged_mark,
)
from kvstore.protocol.fast_puts import (
    NOT_A_PLAIN_PUT,
    SMALL_BATCH_PREFIX,
    Batch,
    SinglePut,
    parse_uniform_batch,
    parse_uniform_single_puts,
    to_general_rows,
    to_put_rows,
    to_single_puts,
)
from kvstore.protocol.results import PUT_DONE, GetResult, RangeResult, ResultItem, read_result, refusal_item
from kvstore.protocol.validation import HEADER_ITEMS, is_count, validate_command, validate_header
from kvstore.store.deadline_heap import NEVER
from kvstore.store.digest import StateHashing, state_digest
from kvstore.store.fast_apply import apply_single_puts
from kvstore.store.history import History
from kvstore.store.leases import EXPIRED_KEYS_PER_ENTRY, GrantedLease, Leases
from kvstore.store.map import KeyValueMap
from kvstore.store.records import SLOTS, RecordItem
from kvstore.store.restore import Restoring
from kvstore.store.sealed_block import ABSENT, BLOCK_BYTES, BLOCK_EVENTS
from kvstore.store.sessions import PUT_RESULT_BYTES, Session, Sessions
from kvstore.store.snapshot_codec import CHUNK_BYTES, UnsupportedFeatureLevel, header_of, read_header, take_snapshot
from kvstore.store.transactions import compare_and_set, operation, put, txn
from raft import Entry, EntryKind, LevelRange, StateSnapshot

_INVALID = int(ResultCode.INVALID_REQUEST)
_PUT = int(CommandKind.PUT)
# A global name costs 50 ns less per use than an attribute of the enum.
_COMMANDS, _NO_OP, _CONFIGURATION = EntryKind.COMMANDS, EntryKind.NO_OP, EntryKind.CONFIGURATION

REPORTED_COMMANDS = 250
"""The approximate number of commands that one call of `on_applied` reports. A call for each entry would cost more than
applying the entry."""

_VALUE_BYTES_MAX = RESPONSE_BYTES_MAX - ITEM_OVERHEAD_BYTES  # The longest value in a response to a get.


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineStatus:
    """Counts and totals of the state. `results`: the number of kept results of all sessions together."""

    revision: int
    compact_revision: int
    leader_time: int
    feature_level: int
    keys: int
    stored_bytes: int
    quota_bytes: int
    deletions: int
    deletion_floor: int
    sessions: int
    results: int
    results_bytes: int


def initial_header(limits: StoreLimits | None = None) -> dict[str, Any]:
    """Return the snapshot header of the empty store, which is the first state of a cluster. A snapshot of the empty
    store has no chunks.

    `limits` must be the same on all initial members, because the limits are replicated state.
    """
    return header_of(KeyValueMap(), Sessions(), limits or StoreLimits(), 0, FEATURE_LEVEL_INITIAL)


def _limits_of(level: int, limits: StoreLimits) -> StoreLimits:
    """Return `limits` with the default value of each limit that feature level `level` lacks. Restoring a snapshot of
    that level results in the same limits."""
    return StoreLimits.from_map(limits.to_map(level))


class KvMachine:
    """A `raft.StateMachine` of records, sessions and their kept results, which begins as the empty store.

    `limits`: the limits of feature level 1. All other limits begin with their defaults, because a state of level 1
    lacks them. `chunk_bytes`: the approximate size of a snapshot's chunks; members may use different sizes. `levels`:
    the feature levels that this machine knows. An entry that raises the level above `levels` stops the member.
    `on_applied`: called after about every `REPORTED_COMMANDS` commands, with the number of commands that were applied
    since the last call.
    """

    def __init__(
        self,
        limits: StoreLimits | None = None,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        levels: LevelRange = FEATURE_LEVELS,
        on_applied: Callable[[int], None] | None = None,
    ) -> None:
        self._on_applied = on_applied
        self._store = KeyValueMap()
        self._sessions = Sessions()
        self._limits = _limits_of(FEATURE_LEVEL_INITIAL, limits or StoreLimits())
        self._leader_time = 0
        self._level = FEATURE_LEVEL_INITIAL
        self._levels = levels
        self._expiry_due = 0  # No session or lease expires before this leader time. 0: not computed yet.
        self._user = ""  # The user whose command is applied; empty if authentication is off.
        self._unreported = 0  # The number of commands applied since the last call of `on_applied`.
        self._chunk_bytes = chunk_bytes
        self.has_changed: Callable[[], None] | None = None  # Called after entries were applied or a state was restored.
        # Called after each change of users and roles: the new auth revision, the user who made the change, the body.
        self.on_access_change: Callable[[int, str, Sequence[Any]], None] | None = None

    # The present state.

    @property
    def revision(self) -> int:
        """The version of the store: 1 for a new store, and one more after each transaction that changed the store."""
        return self._store.revision

    @property
    def compact_revision(self) -> int:
        """The oldest revision that can be read. If no history is kept, this is the present `revision`."""
        return self._store.compact_revision

    @property
    def history(self) -> History:
        """The kept history, up to the present revision. Callers must not change the history, and must get it again
        after each change."""
        self._store.history.settle()
        return self._store.history

    @property
    def leases(self) -> Leases:
        """The leases, which callers must not change."""
        return self._store.leases

    @property
    def access(self) -> AccessState:
        """The users and roles, and whether authentication is on."""
        return self._store.access

    def own_command(self, raw: bytes) -> bytes:
        """Encode a command of this member's own, which belongs to no user, in the form in which the member proposes
        it."""
        access = self._store.access
        return judged_command(raw, judged_mark(access.revision, "")) if access.is_enabled else raw

    @property
    def leader_time(self) -> int:
        """The greatest `leader_time` of the applied entries, in ns."""
        return self._leader_time

    @property
    def feature_level(self) -> int:
        """The feature level in force, which is replicated state, and determines the valid forms of commands."""
        return self._level

    @property
    def limits(self) -> StoreLimits:
        """The replicated limits in force."""
        return self._limits

    @property
    def sessions(self) -> Sessions:
        """The open sessions, which callers must not change."""
        return self._sessions

    @property
    def next_deadline(self) -> int | None:
        """Return the leader time (ns) at which the next session or lease expires; None if there is no session and no
        lease.

        Sessions and leases expire only when an entry is applied, so an idle leader proposes an empty transaction at
        this time.

        See docs/reference/specification.md#812-leader-time.
        """
        return self.next_deadline_by(NEVER)

    def next_deadline_by(self, time: int) -> int | None:
        """Return `next_deadline` if it is at or before `time`. Otherwise return a time after `time`, but not after the
        next deadline.

        Amortized cost: constant. `next_deadline` costs 1 µs for each deadline that was postponed recently.
        """
        return _earlier(self._sessions.next_deadline(time), self._store.leases.next_deadline(time))

    def status(self) -> MachineStatus:
        """Return the counts and totals of the state. Cost: O(sessions)."""
        store, sessions = self._store, self._sessions
        return MachineStatus(
            revision=store.revision,
            compact_revision=self.compact_revision,
            leader_time=self._leader_time,
            feature_level=self._level,
            keys=len(store.records),
            stored_bytes=store.stored_bytes,
            quota_bytes=self._limits.quota_bytes,
            deletions=len(store.deletions),
            deletion_floor=store.deletion_floor,
            sessions=len(sessions.by_id),
            results=sum([len(session.results) for session in sessions.by_id.values()]),
            results_bytes=sessions.results_bytes,
        )

    # Reads of the state that this member has applied.

    def read(self, body: Sequence[Any]) -> ResultItem:
        """Carry out a get, a range, or a transaction of only gets and ranges on the present state of this member.
        Return the result item. `body` must have passed `admit_body`."""
        if body[0] == CommandKind.TXN:
            return txn(self._store, body, self._limits)
        assert body[0] in (CommandKind.GET, CommandKind.RANGE), body[0]
        return operation(self._store, body, self._limits)

    def records_of(self, keys: Iterable[bytes]) -> list[RecordItem | None]:
        """Return the records of the keys of gets. For an absent key, and for a value that is too large for a response,
        the result contains None, and the caller must call `read`."""
        slots, value_bytes_max = self._store.records.slots, _VALUE_BYTES_MAX
        return [
            record if (record := slots[hash(key) % SLOTS].get(key)) and len(record[0]) <= value_bytes_max else None
            for key in keys
        ]

    def get(self, key: bytes) -> GetResult:
        """Read one key, which must not be empty."""
        result = read_result(self.read((CommandKind.GET, key)))
        assert isinstance(result, GetResult)
        return result

    def range(self, request: Range) -> RangeResult:
        """Read one page of a range. Raises RevisionCompacted, RevisionAhead."""
        result = read_result(self.read(command_body(request)))
        assert isinstance(result, RangeResult)
        return result

    # The log.

    def apply(self, entry: Entry) -> list[ResultItem]:
        """Apply one committed entry, and return the results of its commands, in order.

        Before the commands are applied, the sessions and leases that are due at the entry's time expire. Cost of a put
        in a batch: about 1 to 4 µs, see docs/reference/semantics.md. Raises UnreadablePayload or
        UnsupportedFeatureLevel, after which the member must stop.
        """
        kind, payload = entry.kind, entry.payload
        if kind is _CONFIGURATION:
            return []
        if self._store.access.is_enabled:
            results = self._apply_judged(kind, *decode_payload(payload, entry.index), entry.index)
        elif (
            FAST_PATHS
            and kind is _COMMANDS
            and payload[:1] > SMALL_BATCH_PREFIX
            and (batch := parse_uniform_batch(payload)) is not None
        ):
            results = self._apply_batches((batch,))[0]
        else:
            time, items = decode_payload(payload, entry.index)
            if self._level >= ACCESS_LEVEL and ENABLE_MARK in payload:
                results = self._apply_judged(kind, time, items, entry.index)
            else:
                if kind is _NO_OP:
                    self._apply_no_op(items, entry.index)
                to_rows = to_put_rows if FAST_PATHS else to_general_rows
                results = self._apply_batches(((time, to_rows(items[1:])),))[0]
        self._finish(len(results))
        return results

    def apply_batch(self, entries: Sequence[Entry]) -> list[list[ResultItem]]:
        """Apply several entries in order, as `apply` does, but at a lower cost, above all for entries with few
        commands.

        All entries are decoded together, so the caller must bound their number. If an entry cannot be applied,
        the entries before it are applied, and then the error is raised.
        """
        if not FAST_PATHS or self._store.access.is_enabled:
            return [self.apply(entry) for entry in entries]
        payloads = [entry.payload for entry in entries if entry.kind is _COMMANDS]
        if len(payloads) == len(entries) > 1 and (rows := parse_uniform_single_puts(payloads)) is not None:
            results = self._apply_single_puts(rows)
        else:
            decoded = decode_payloads(payloads) if len(payloads) == len(entries) else None
            may_enable = self._level >= ACCESS_LEVEL and any(ENABLE_MARK in payload for payload in payloads)
            if decoded is None or may_enable:
                return [self.apply(entry) for entry in entries]
            if (rows := to_single_puts(decoded)) is not None:
                results = self._apply_single_puts(rows)
            else:
                results = self._apply_batches([(items[0], to_put_rows(items[1:])) for items in decoded])
        self._finish(sum(map(len, results)))
        return results

    def _finish(self, command_count: int) -> None:
        """Finish applying entries with `command_count` commands."""
        history = self._store.history
        events = history.open  # The first two conditions mean a full block, as in `settle`.
        if len(events.keys) >= BLOCK_EVENTS or events.totals[-1] - events.totals[0] >= BLOCK_BYTES or history.dropped:
            history.settle()
        self._unreported += command_count
        if self._unreported >= REPORTED_COMMANDS and self._on_applied is not None:
            self._on_applied(self._unreported)
            self._unreported = 0
        if self.has_changed is not None:
            self.has_changed()

    def _apply_judged(self, kind: EntryKind, time: int, items: Sequence[Any], index: int) -> list[ResultItem]:
        """Apply the commands of an entry while authentication is on, or in an entry that may turn authentication on.

        A command that was judged under another auth revision than the present one is refused without an effect. Its
        session stores no result of the command, so that the command can be judged and sent again. All other commands
        are applied together, as if they had never been marked. Only a command that needs to know its user is applied
        alone.
        """
        if kind is _NO_OP:
            self._apply_no_op(items, index)
        to_rows = to_put_rows if FAST_PATHS else to_general_rows
        self._apply_batches(((time, ()),))  # Advances leader time, even if every command is refused.
        answers: list[ResultItem] = []
        together: list[Any] = []
        by_id, judged_kind, header = self._sessions.by_id, int(CommandKind.JUDGED), HEADER_ITEMS
        access = self._store.access
        for item in items[1:]:
            if (  # The usual case, handled without a call, which saves 1 µs.
                access.is_enabled
                and type(item) is tuple
                and len(item) > MARKED_ITEMS_MIN
                and item[header] == judged_kind
                and item[4] == access.revision
                and type(item[0]) is type(item[4]) is type(item[6]) is int
                and type(item[5]) is str
                and item[6] not in _KINDS_APART
                and ((session := by_id.get(item[0])) is None or session.owner == item[5])
            ):
                together.append(item[:header] + item[MARKED_ITEMS_MIN:])
                continue
            judged = self._judged(item)
            is_foreign = judged is not None and self._is_foreign(judged[1], judged[2])
            if judged is not None and not is_foreign and judged[0] not in _KINDS_APART:
                together.append(judged[2])
                continue
            if together:
                answers += self._apply_batches(((time, to_rows(together)),))[0]
                together = []
            if judged is None:
                answers.append(self._outdated(item))
            elif is_foreign:
                answers.append(refusal_item(SessionExpired(item[0]), self._store.revision))
            else:
                _, self._user, plain = judged
                answers += self._apply_batches(((time, to_general_rows([plain])),))[0]
                self._user, access = "", self._store.access
        if together:
            answers += self._apply_batches(((time, to_rows(together)),))[0]
        return answers

    def _judged(self, item: Any) -> tuple[int, str, Any] | None:
        """Return the kind, the user and the command of an item of the log; None if the item was judged under another
        auth revision. An item without a valid form has the kind 0, and is refused when it is applied."""
        access = self._store.access
        is_marked = type(item) is tuple and len(item) > MARKED_ITEMS_MIN and item[HEADER_ITEMS] == CommandKind.JUDGED
        if not access.is_enabled:
            kind = item[HEADER_ITEMS] if type(item) is tuple and len(item) > HEADER_ITEMS else 0
            return None if is_marked else (kind if type(kind) is int else 0, "", item)
        if not is_marked or item[4] != access.revision or type(item[5]) is not str or type(item[6]) is not int:
            return None
        return item[6], item[5], (*item[:HEADER_ITEMS], *item[6:])

    def _is_foreign(self, user: str, item: Any) -> bool:
        """True if another user has opened the session of a command. The kept results of the session are not for this
        user."""
        if not self._store.access.is_enabled or not is_count(item[0]):
            return False
        session = self._sessions.by_id.get(item[0])
        return session is not None and session.owner not in ("", user) and user != ""

    def _outdated(self, item: Any) -> ResultItem:
        """Return the refusal of a command that was judged under another auth revision."""
        is_marked = type(item) is tuple and len(item) > MARKED_ITEMS_MIN and item[HEADER_ITEMS] == CommandKind.JUDGED
        revision = item[4] if is_marked and is_count(item[4]) else 0
        return refusal_item(AuthRevisionOld(revision, self._store.access.revision), self._store.revision)

    def _apply_single_puts(self, rows: Sequence[SinglePut]) -> list[list[ResultItem]]:
        """Apply entries with one put each on the fast path. `_apply_batches` applies the first put that needs the
        general path, and all later puts."""
        self._leader_time, answers = apply_single_puts(
            self._store, self._sessions, self._limits, self._leader_time, self._expiry_due, rows
        )
        results = [[answer] for answer in answers]
        if len(results) < len(rows):
            results += self._apply_batches([(row[0], (row[1:],)) for row in rows[len(results) :]])
        return results

    def _apply_batches(self, batches: Sequence[Batch]) -> list[list[ResultItem]]:
        """Apply the commands of each batch at the leader time of the batch.

        A hot loop for puts with a session, the most frequent commands. The methods `enter`, `answered` and `keep` of
        `Sessions`, and the function `put`, are inlined, which halves their time. Work that is the same for adjacent
        commands of one session is done once. All other commands are passed to `_apply_command`. That method repeats
        updates of the session that this loop has already made, which is harmless. Tests compare this loop with a
        machine that uses only `_apply_command`.
        """
        results_of_all: list[list[ResultItem]] = []
        store, sessions, leader_time = self._store, self._sessions, self._leader_time
        slots, by_id, deletions, views = store.records.slots, sessions.by_id, store.deletions, store.views
        history, leases = store.history, store.leases.by_id
        keeps_history = history.is_on
        totals = history.open.totals
        add_revision, add_key, add_value, add_created, add_modified, add_version, add_new_value, add_total = (
            history.open.appends
        )
        kept_max, kept_bytes_max, all_bytes_max, quota_bytes = _bounds(self._limits)
        revision, stored_bytes, all_bytes = store.revision, store.stored_bytes, sessions.results_bytes
        session: Session | None = None  # The session of the last put on the fast path. Its fields are cached below.
        last_id, floor, session_bytes = NOT_A_PLAIN_PUT, 0, 0
        results: dict[int, ResultItem] = {}
        for time, rows in batches:
            if time > leader_time:  # Leader time never decreases.
                if session is not None:
                    session.floor, session.results_bytes, session, last_id = floor, session_bytes, None, NOT_A_PLAIN_PUT
                self._leader_time = leader_time = time
                if leader_time >= self._expiry_due:
                    store.revision, store.stored_bytes, sessions.results_bytes = revision, stored_bytes, all_bytes
                    self._expire()
                    revision, stored_bytes, all_bytes = store.revision, store.stored_bytes, sessions.results_bytes
            answers: list[ResultItem] = []
            results_of_all.append(answers)
            for session_id, request_no, acknowledged_up_to, key, value in rows:
                if session_id != last_id:
                    if session is not None:
                        session.floor, session.results_bytes = floor, session_bytes
                    session = by_id.get(session_id) if acknowledged_up_to < request_no else None
                    last_id = NOT_A_PLAIN_PUT
                    if session is not None:
                        for clients in sessions.views:
                            clients.save(session)
                        session.deadline = leader_time + session.ttl_ns
                        results, floor, session_bytes = session.results, session.floor, session.results_bytes
                        last_id = session_id
                if session is not None:
                    if floor < acknowledged_up_to < request_no:
                        kept = results.get(acknowledged_up_to) if acknowledged_up_to == floor + 1 else None
                        if kept and kept[2] is PUT_DONE:  # The usual case: one open request at a time.
                            del results[acknowledged_up_to]
                            floor = acknowledged_up_to
                            session_bytes -= PUT_RESULT_BYTES
                            all_bytes -= PUT_RESULT_BYTES
                        else:
                            session.floor, session.results_bytes = floor, session_bytes
                            sessions.results_bytes = all_bytes
                            sessions.acknowledge(session, acknowledged_up_to)
                            floor, session_bytes = session.floor, session.results_bytes
                            all_bytes = sessions.results_bytes
                    records = slots[hash(key) % SLOTS]
                    old = records.get(key)
                    growth = len(value) - len(old[0]) if old else len(key) + len(value) + RECORD_OVERHEAD_BYTES
                    if (
                        acknowledged_up_to <= floor < request_no
                        and len(results) < kept_max
                        and session_bytes < kept_bytes_max
                        and all_bytes < all_bytes_max
                        and (growth <= 0 or stored_bytes + growth <= quota_bytes)
                        and not (leases and old and old[4])
                    ):
                        answer = (0, revision + 1, PUT_DONE)
                        if results.setdefault(request_no, answer) is answer:
                            revision += 1
                            stored_bytes += growth
                            session_bytes += PUT_RESULT_BYTES
                            all_bytes += PUT_RESULT_BYTES
                            if old:
                                for view in views:
                                    view.save(key, old)
                                records[key] = (value, old[1], revision, old[3] + 1, 0)
                            else:
                                records[key] = (value, revision, revision, 1, 0)
                                store.keys.add(key)
                                if key in deletions:
                                    store.undelete(key)
                            if keeps_history:
                                old_value, created, modified, version, _ = old or ABSENT
                                add_revision(revision)
                                add_key(key)
                                add_value(old_value)
                                add_created(created)
                                add_modified(modified)
                                add_version(version)
                                add_new_value(value)
                                add_total(totals[-1] + len(key) + len(old_value) + RECORD_OVERHEAD_BYTES)
                            answers.append(answer)
                            continue
                    session.floor, session.results_bytes, session, last_id = floor, session_bytes, None, NOT_A_PLAIN_PUT
                item = (
                    value
                    if session_id == NOT_A_PLAIN_PUT
                    else (session_id, request_no, acknowledged_up_to, _PUT, key, value)
                )
                store.revision, store.stored_bytes, sessions.results_bytes = revision, stored_bytes, all_bytes
                answers.append(self._apply_command(item))
                revision, stored_bytes, all_bytes = store.revision, store.stored_bytes, sessions.results_bytes
                kept_max, kept_bytes_max, all_bytes_max, quota_bytes = _bounds(self._limits)
                keeps_history = history.is_on
        if session is not None:
            session.floor, session.results_bytes = floor, session_bytes
        store.revision, store.stored_bytes, sessions.results_bytes = revision, stored_bytes, all_bytes
        return results_of_all

    def _expire(self) -> None:
        """Close the due sessions, end the due leases, and compute `_expiry_due`.

        Once EXPIRED_KEYS_PER_ENTRY keys and leases have been removed, no further lease ends. Leases that are still due
        end with the next entry that has a later time.
        """
        self._sessions.expire(self._leader_time)
        leases, room = self._store.leases, EXPIRED_KEYS_PER_ENTRY
        while room > 0 and (lease := leases.due(self._leader_time)) is not None:
            room -= 1 + self._end_lease(lease)
        due = self.next_deadline_by(self._leader_time)
        self._expiry_due = NEVER if due is None else due

    def _apply_no_op(self, items: Sequence[Any], index: int) -> None:
        if len(items) != 1:
            raise UnreadablePayload(index, "a no_op has a time and nothing else")
        self._begin_term(max(items[0], self._leader_time))

    def _begin_term(self, leader_time: int) -> None:
        """Apply the first entry of a new leader. No lease expires for `lease_grace_ns`, because owners must find the
        new leader."""
        if self._level >= HISTORY_LEVEL:
            leases = self._store.leases
            leases.hold_until = max(leases.hold_until, leader_time + self._limits.lease_grace_ns)

    def _end_lease(self, lease: GrantedLease) -> int:
        """Remove the keys of a lease, in byte order and as one change, and then the lease. Returns the number of
        removed keys."""
        store = self._store
        written = store.take_out_all(sorted(lease.keys))
        if written:
            store.seal(written, store.revision + 1, self._limits.deletions_max)
        store.leases.remove(lease)
        return len(written)

    def _apply_command(self, item: Any) -> ResultItem:
        """Apply one decoded command, which may be any CBOR item, valid or not."""
        flaw = validate_header(item)
        if flaw is not None:
            return self._invalid(flaw)
        if item[3] == CommandKind.JUDGED and self._level >= ACCESS_LEVEL:  # Authentication has been turned off since.
            return self._outdated(item)
        if item[0] == 0:
            return self._carry_out(item)
        sessions, revision = self._sessions, self._store.revision
        session = sessions.enter(item, self._leader_time, revision)
        if not isinstance(session, Session):
            return session
        kind = item[3]
        if kind == CommandKind.CLOSE_SESSION or kind == CommandKind.KEEP_ALIVE:
            return self._keep_or_close(session, item)
        answer = sessions.answered(session, item[1], self._limits, revision)
        if answer is None:
            answer = self._carry_out(item)
            if answer[0] != ResultCode.BUSY:  # BUSY is not kept, so that a repeated request can be carried out.
                sessions.keep(session, item[1], answer)
        return answer

    def _carry_out(self, item: Sequence[Any]) -> ResultItem:
        """Carry out a command that has neither a kept result nor a session error."""
        kind = item[3]
        if type(kind) is int and kind == 1 and len(item) == 6:
            key, value = item[4], item[5]
            if type(key) is bytes and key and type(value) is bytes:
                return put(self._store, key, value, self._limits)
        flaw = validate_command(item, self._level)
        if flaw is not None:
            return self._invalid(flaw)
        body = item[HEADER_ITEMS:]
        if kind == CommandKind.COMPARE_AND_SET:
            return compare_and_set(self._store, body, self._limits)
        if kind == CommandKind.TXN:
            return txn(self._store, body, self._limits)
        if kind < CommandKind.REGISTER_SESSION:
            return operation(self._store, body, self._limits)
        if kind > CommandKind.COMPACT:
            return self._change_access(body)
        if kind > CommandKind.RAISE_FEATURE_LEVEL:
            return self._lease_or_compact(body)
        return self._administer(body)

    def _keep_or_close(self, session: Session, item: Sequence[Any]) -> ResultItem:
        """Keep a session alive, or close the session. Repeating these two commands is harmless, so they have no request
        number and no kept result."""
        flaw = validate_command(item, self._level)
        if flaw is not None:
            return self._invalid(flaw)
        if item[3] == CommandKind.CLOSE_SESSION:
            self._sessions.close(session)
        return (0, self._store.revision, (item[3],))

    def _lease_or_compact(self, body: Sequence[Any]) -> ResultItem:
        """Carry out a lease command or a compaction. Both need feature level 2."""
        kind, store = body[0], self._store
        leases, history = store.leases, store.history
        if kind == CommandKind.LEASE_RENEW:
            return (0, store.revision, (kind, *leases.renew_all(body[1:], self._leader_time)))
        if kind == CommandKind.LEASE_GRANT:
            if body[1] in leases.by_id:
                return refusal_item(LeaseExists(body[1]), store.revision)
            if len(leases.by_id) >= self._limits.leases_max:
                return refusal_item(StoreBusy("leases_max", self._limits.leases_max), store.revision)
            lease = leases.grant(body[1], body[2], self._leader_time)
            self._expiry_due = 0
            return (0, store.revision, (kind, lease.lease_id, lease.ttl_ns))
        if kind == CommandKind.LEASE_REVOKE:
            found = leases.by_id.get(body[1])
            if found is None:
                return refusal_item(LeaseNotFound(body[1]), store.revision)
            count = self._end_lease(found)
            return (0, store.revision, (kind, count))
        assert kind == CommandKind.COMPACT, kind
        history.settle()  # Updates `compact_revision`.
        if body[1] > store.revision:
            return refusal_item(RevisionAhead(body[1], store.revision), store.revision)
        if body[1] <= store.compact_revision:
            return refusal_item(RevisionCompacted(body[1], store.compact_revision), store.revision)
        history.compact(body[1])
        return (0, store.revision, (kind,))

    def _change_access(self, body: Sequence[Any]) -> ResultItem:
        """Change users and roles, or turn authentication on or off. Needs feature level 3."""
        store = self._store
        try:
            store.access = store.access.changed_by(body)
        except AccessRefused as error:
            return refusal_item(error, store.revision)
        if self.on_access_change is not None:
            self.on_access_change(store.access.revision, self._user, body)
        return (0, store.revision, (body[0], store.access.revision))

    def _administer(self, body: Sequence[Any]) -> ResultItem:
        kind, revision = body[0], self._store.revision
        if kind == CommandKind.REGISTER_SESSION:
            if len(self._sessions.by_id) >= self._limits.sessions_max:
                return refusal_item(StoreBusy("sessions_max", self._limits.sessions_max), revision)
            session = self._sessions.register(body[1], self._leader_time, self._user)
            self._expiry_due = 0
            return (0, revision, (kind, session.session_id, session.ttl_ns))
        if kind == CommandKind.CHANGE_LIMITS:
            changes = {
                name: value for name, value in zip(StoreLimits.names(), body[1:], strict=False) if value is not None
            }
            self._limits = replace(self._limits, **changes)
            self._store.forget_deletions(self._limits.deletions_max)
            self._bound_history()
        else:
            assert kind == CommandKind.RAISE_FEATURE_LEVEL, kind
            if body[1] > self._levels.highest:
                raise UnsupportedFeatureLevel(body[1], self._levels)
            self._level = max(self._level, body[1])
            self._bound_history()
        return (0, revision, (kind,))

    def _bound_history(self) -> None:
        if self._level >= HISTORY_LEVEL:
            limits = self._limits
            self._store.history.set_bounds(self._store.revision, limits.history_bytes_max, limits.history_events_max)

    def _invalid(self, reason: Reason) -> ResultItem:
        return (_INVALID, self._store.revision, reason.value)

    # The state as a whole.

    def snapshot(self) -> StateSnapshot:
        """Take a snapshot of the present state, which later changes do not affect. Cost: O(sessions).

        Until the snapshot is closed, or read to its end, the store saves each row for the snapshot before the row
        changes.
        """
        header = header_of(self._store, self._sessions, self._limits, self._leader_time, self._level)
        return take_snapshot(self._store, self._sessions, header, self._chunk_bytes)

    def restore(self, header: Mapping[str, Any], chunks: Iterable[bytes]) -> None:
        """Load the state of a snapshot. Raises InvalidSnapshot or UnsupportedFeatureLevel without changing the
        state."""
        restoring = self.begin_restore(header, chunks)
        while restoring.step():
            pass

    def begin_restore(self, header: Mapping[str, Any], chunks: Iterable[bytes]) -> Restoring:
        """Begin a `restore` in slices of a few ms. Entries that are applied before the restore ends change only the old
        state, so their changes are lost.

        Raises InvalidSnapshot, UnsupportedFeatureLevel.
        """
        limits = read_header(header, self._levels)

        def become(store: KeyValueMap, sessions: Sessions) -> tuple[KeyValueMap, Sessions]:
            before = self._store, self._sessions
            self._store, self._sessions = store, sessions
            self._limits, self._leader_time, self._level = limits, header["leader_time"], header["feature_level"]
            self._expiry_due = 0
            if self.has_changed is not None:
                self.has_changed()
            return before

        return Restoring(header, chunks, become)

    def state_hash(self) -> bytes:
        """Return the digest (32 bytes) of all replicated fields, including sessions. Cost: O(n)."""
        return state_digest(self._store, self._sessions, self._limits, self._leader_time, self._level)

    def begin_state_hash(self) -> StateHashing:
        """Begin to compute the present `state_hash` in slices. Cost: O(sessions)."""
        return StateHashing(self._store, self._sessions, self._limits, self._leader_time, self._level)

    def check(self) -> None:
        """Verify every internal invariant. Raises AssertionError if an invariant is broken. Cost: O(n). For tests and
        simulations."""
        self._store.check()
        self._sessions.check(self._leader_time)
        due = self.next_deadline
        assert self._expiry_due <= (NEVER if due is None else due)
        assert self._level >= HISTORY_LEVEL or not (self._store.history.is_on or self._store.leases.by_id)
        assert self._level in self._levels
        self._store.access.check()
        assert self._level >= ACCESS_LEVEL or self._store.access is NO_ACCESS_STATE
        assert len(self._store.deletions) <= self._limits.deletions_max


_KINDS_APART = frozenset(map(int, ACCESS_KINDS | {CommandKind.REGISTER_SESSION}))
"""The commands that need to know their user, and the commands that change users."""

MARKED_ITEMS_MIN = HEADER_ITEMS + JUDGED_ITEMS
"""The least number of items of a judged command: its header, its mark, and at least a kind."""

_bounds = attrgetter("results_per_session_max", "results_bytes_per_session_max", "results_bytes_max", "quota_bytes")
"""Returns the limits against which a put is checked."""


def _earlier(first: int | None, second: int | None) -> int | None:
    """Return the earlier of two times. None means never."""
    return second if first is None else first if second is None else min(first, second)

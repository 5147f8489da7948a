"""The replicated state machine: committed entries in, results out (FORMATS §8, §9).

Deterministic: no clock, no randomness, no configuration but the replicated limits. Whatever a client wrote into a
command ends in a result, the same on every member; only an entry that no build at this feature level can have made
stops the member (`UnreadablePayload`, `UnsupportedFeatureLevel`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvstore.commands import CommandKind, Range, UnreadablePayload, command_body, decode_payload, decode_payloads
from kvstore.digest import state_digest
from kvstore.limits import (
    FEATURE_LEVEL_INITIAL,
    FEATURE_LEVELS,
    ITEM_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    RESPONSE_BYTES_MAX,
    TIME_NS_MAX,
    StoreLimits,
)
from kvstore.records import SLOTS, RecordItem
from kvstore.refusals import Reason, ResultCode, StoreBusy
from kvstore.restoring import Restoring
from kvstore.results import PUT_DONE, GetResult, RangeResult, ResultItem, read_result, refusal_item
from kvstore.sessions import PUT_RESULT_BYTES, Session, Sessions
from kvstore.shapes import HEAD_ITEMS, command_flaw, head_flaw
from kvstore.snapshots import (
    CHUNK_BYTES,
    UnsupportedFeatureLevel,
    header_of,
    read_header,
    take_picture,
)
from kvstore.store import Store
from kvstore.transactions import compare_and_set, operation, put, txn
from raft import INT64_MAX, Entry, EntryKind, LevelRange, StateSnapshot

_INVALID = int(ResultCode.INVALID_REQUEST)
_PUT = int(CommandKind.PUT)
_NO_PUT = (0, 0, 0, 0, b"", b"")
_NEVER = TIME_NS_MAX + 1
_VALUE_BYTES_MAX = RESPONSE_BYTES_MAX - ITEM_OVERHEAD_BYTES  # In the answer to a get.


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineStatus:
    """The state in numbers. `results`: kept for sessions."""

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
    """The snapshot header of the empty store, with which a cluster begins; it has no chunks.

    `limits` must be the same on all initial members: they are replicated state.
    """
    return header_of(Store(), Sessions(), limits or StoreLimits(), 0, FEATURE_LEVEL_INITIAL)


class KvMachine:
    """A `raft.StateMachine` of records, sessions and their kept results. It starts as the empty store.

    `chunk_bytes`: about so much of a snapshot is encoded in one go; each member may have its own. `levels`: the feature
    levels that it applies; it stops at any other.
    """

    def __init__(
        self,
        limits: StoreLimits | None = None,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        levels: LevelRange = FEATURE_LEVELS,
    ) -> None:
        self._store = Store()
        self._sessions = Sessions()
        self._limits = limits or StoreLimits()
        self._leader_time = 0
        self._level = FEATURE_LEVEL_INITIAL
        self._levels = levels
        self._expiry_due = 0  # No session expires before this: deadlines are only put off, and new sessions reset it.
        self._chunk_bytes = chunk_bytes

    # What it is now.

    @property
    def revision(self) -> int:
        """The store's version: 1 when empty, one more for each transaction that changed something."""
        return self._store.revision

    @property
    def compact_revision(self) -> int:
        """Older revisions cannot be read. No history is kept, so it is `revision` itself."""
        return self._store.revision

    @property
    def leader_time(self) -> int:
        """The greatest `leader_time` applied, in ns."""
        return self._leader_time

    @property
    def feature_level(self) -> int:
        """Which shapes of commands are known, on all members alike."""
        return self._level

    @property
    def limits(self) -> StoreLimits:
        """The replicated limits in force."""
        return self._limits

    @property
    def next_deadline(self) -> int | None:
        """When the next session expires, in ns of leader time; None if there is none.

        Expiry happens at apply only: an idle leader proposes an empty batch when this is due (FORMATS §8).
        """
        return self._sessions.next_deadline()

    def status(self) -> MachineStatus:
        """The state in numbers. Cost: O(sessions)."""
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

    # Reads of what this member has applied.

    def read(self, body: Sequence[Any]) -> ResultItem:
        """The result item of a get or range, whose body `validate_body` has passed; as of now, on this member."""
        assert body[0] in (CommandKind.GET, CommandKind.RANGE), body[0]
        return operation(self._store, body, self._limits)

    def records_of(self, keys: Iterable[bytes]) -> list[RecordItem | None]:
        """What `read` finds for a get of each: the record, or None, and then only `read` has the answer."""
        slots, value_bytes_max = self._store.records.slots, _VALUE_BYTES_MAX
        return [
            record if (record := slots[hash(key) % SLOTS].get(key)) and len(record[0]) <= value_bytes_max else None
            for key in keys
        ]

    def get(self, key: bytes) -> GetResult:
        """One record. `key` has at least one byte."""
        result = read_result(self.read((CommandKind.GET, key)))
        assert isinstance(result, GetResult)
        return result

    def range(self, request: Range) -> RangeResult:
        """One page. Raises RevisionCompacted, RevisionAhead."""
        result = read_result(self.read(command_body(request)))
        assert isinstance(result, RangeResult)
        return result

    # The log.

    def apply(self, entry: Entry) -> list[ResultItem]:
        """Apply one committed entry; one result per command in it, in order.

        Sessions whose deadline the entry's time has reached expire before its commands. Cost of a batch of puts: about
        1 to 4 µs each, see docs/semantics.md. Raises UnreadablePayload, UnsupportedFeatureLevel: the member must stop.
        """
        if entry.kind is EntryKind.CONFIGURATION:
            return []
        return self._apply_batches((self._batch_of(entry),))[0]

    def apply_run(self, entries: Sequence[Entry]) -> list[list[ResultItem]]:
        """`apply` each of several, in order: the same for less, above all where each has few commands.

        They are decoded together: the caller bounds their number. If it raises, those before that entry are applied.
        """
        commands = EntryKind.COMMANDS  # Looked up once: 50 ns.
        payloads = [entry.payload for entry in entries if entry.kind is commands]
        batches = decode_payloads(payloads) if len(payloads) == len(entries) else None
        return [self.apply(entry) for entry in entries] if batches is None else self._apply_batches(batches)

    def _batch_of(self, entry: Entry) -> tuple[Any, ...]:
        """The time and the commands in an entry."""
        _, items = decode_payload(entry.payload, entry.index)
        if entry.kind is EntryKind.NO_OP and len(items) != 1:
            raise UnreadablePayload(entry.index, "a no_op has a time and nothing else")
        return items

    def _apply_batches(self, batches: Sequence[tuple[Any, ...]]) -> list[list[ResultItem]]:
        """Apply the commands of each batch at its time, which it holds first.

        A hot loop for puts under sessions, most of what a store is given: `enter`, `answered`, `put` and `keep` in
        line take half the time. Whatever is unusual about a command goes to `_apply_command`, which does what has been
        done so far once more, without harm; the tests compare with a machine that sends all of them there.
        """
        results_of_all: list[list[ResultItem]] = []
        store, sessions, limits, leader_time = self._store, self._sessions, self._limits, self._leader_time
        slots, by_id, deletions, pictures = store.records.slots, sessions.by_id, store.deletions, store.pictures
        for items in batches:
            commands = iter(items)
            time = next(commands)
            if time > leader_time:  # It never goes back.
                self._leader_time = leader_time = time
                if leader_time >= self._expiry_due:
                    self._expire()
            answers: list[ResultItem] = []
            results_of_all.append(answers)
            for item in commands:
                is_six = type(item) is tuple and len(item) == 6
                session_id, request_no, acknowledged_up_to, kind, key, value = item if is_six else _NO_PUT
                if (
                    kind is _PUT  # As all small integers: what is only equal to it is unusual.
                    and type(session_id) is int
                    and type(request_no) is int
                    and type(acknowledged_up_to) is int
                    and 0 <= acknowledged_up_to < request_no <= INT64_MAX
                    and type(key) is bytes
                    and key
                    and type(value) is bytes
                    and (session := by_id.get(session_id)) is not None
                ):
                    if pictures:
                        self._save(session, key)
                    session.deadline = leader_time + session.ttl_ns
                    results, floor, grown_bytes = session.results, session.floor, PUT_RESULT_BYTES
                    if acknowledged_up_to > floor:
                        kept = results.get(acknowledged_up_to)
                        if acknowledged_up_to == floor + 1 and kept and kept[2] is PUT_DONE:  # As clients do.
                            del results[acknowledged_up_to]
                            session.floor = floor = acknowledged_up_to
                            grown_bytes = 0  # One goes, one comes.
                        else:
                            sessions.acknowledge(session, acknowledged_up_to)
                            floor = acknowledged_up_to
                    records = slots[hash(key) % SLOTS]
                    old = records.get(key)
                    growth = len(value) - len(old[0]) if old else len(key) + len(value) + RECORD_OVERHEAD_BYTES
                    stored_bytes = store.stored_bytes + growth
                    if (
                        request_no > floor
                        and request_no not in results
                        and len(results) < limits.results_per_session_max
                        and session.results_bytes < limits.results_bytes_per_session_max
                        and sessions.results_bytes < limits.results_bytes_max
                        and (growth <= 0 or stored_bytes <= limits.quota_bytes)
                    ):
                        revision = store.revision = store.revision + 1
                        store.stored_bytes = stored_bytes
                        if old:
                            records[key] = (value, old[1], revision, old[3] + 1, 0)
                        else:
                            records[key] = (value, revision, revision, 1, 0)
                            store.keys.add(key)
                            if key in deletions:
                                store.undelete(key)
                        results[request_no] = answer = (0, revision, PUT_DONE)
                        if grown_bytes:
                            session.results_bytes += grown_bytes
                            sessions.results_bytes += grown_bytes
                        answers.append(answer)
                        continue
                    if not grown_bytes:  # One has gone, and none came.
                        session.results_bytes -= PUT_RESULT_BYTES
                        sessions.results_bytes -= PUT_RESULT_BYTES
                answers.append(self._apply_command(item))
                limits = self._limits
        return results_of_all

    def _expire(self) -> None:
        """Close the sessions whose deadline has come, and see when there may be others."""
        self._sessions.expire(self._leader_time)
        due = self._sessions.next_deadline()
        self._expiry_due = _NEVER if due is None else due

    def _save(self, session: Session, key: bytes) -> None:
        """Pictures are open: what a put under this session may be about to change is saved for them."""
        for clients in self._sessions.pictures:
            clients.save(session)
        record = self._store.records.get(key)
        if record is not None:
            for picture in self._store.pictures:
                picture.save(key, record)

    def _apply_command(self, item: Any) -> ResultItem:
        """Apply one command of whatever shape."""
        flaw = head_flaw(item)
        if flaw is not None:
            return self._invalid(flaw)
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
            sessions.keep(session, item[1], answer)
        return answer

    def _carry_out(self, item: Sequence[Any]) -> ResultItem:
        """Carry out a command that nothing answers already."""
        kind = item[3]
        if type(kind) is int and kind == 1 and len(item) == 6:
            key, value = item[4], item[5]
            if type(key) is bytes and key and type(value) is bytes:
                return put(self._store, key, value, self._limits)
        flaw = command_flaw(item, self._level)
        if flaw is not None:
            return self._invalid(flaw)
        body = item[HEAD_ITEMS:]
        if kind <= CommandKind.RANGE:
            return operation(self._store, body, self._limits)
        if kind == CommandKind.COMPARE_AND_SET:
            return compare_and_set(self._store, body, self._limits)
        if kind == CommandKind.TXN:
            return txn(self._store, body, self._limits)
        return self._administer(body)

    def _keep_or_close(self, session: Session, item: Sequence[Any]) -> ResultItem:
        """These two are harmless when repeated, so they have no number and nothing of them is kept."""
        flaw = command_flaw(item, self._level)
        if flaw is not None:
            return self._invalid(flaw)
        if item[3] == CommandKind.CLOSE_SESSION:
            self._sessions.close(session)
        return (0, self._store.revision, (item[3],))

    def _administer(self, body: Sequence[Any]) -> ResultItem:
        kind, revision = body[0], self._store.revision
        if kind == CommandKind.REGISTER_SESSION:
            if len(self._sessions.by_id) >= self._limits.sessions_max:
                return refusal_item(StoreBusy("sessions_max", self._limits.sessions_max), revision)
            session = self._sessions.register(body[1], self._leader_time)
            self._expiry_due = 0
            return (0, revision, (kind, session.session_id, session.ttl_ns))
        if kind == CommandKind.CHANGE_LIMITS:
            changes = {name: value for name, value in zip(StoreLimits.names(), body[1:], strict=True) if value}
            self._limits = replace(self._limits, **changes)
            self._store.forget_deletions(self._limits.deletions_max)
        else:
            assert kind == CommandKind.RAISE_FEATURE_LEVEL, kind
            if body[1] > self._levels.highest:
                raise UnsupportedFeatureLevel(body[1], self._levels)
            self._level = max(self._level, body[1])
        return (0, revision, (kind,))

    def _invalid(self, reason: Reason) -> ResultItem:
        return (_INVALID, self._store.revision, reason.value)

    # The state as a whole.

    def snapshot(self) -> StateSnapshot:
        """A picture of this moment, however late its chunks are read. Cost: O(sessions).

        Until it is read to the end, or closed, what changes is saved for it.
        """
        header = header_of(self._store, self._sessions, self._limits, self._leader_time, self._level)
        return take_picture(self._store, self._sessions, header, self._chunk_bytes)

    def restore(self, header: Mapping[str, Any], chunks: Iterable[bytes]) -> None:
        """Become what a snapshot describes. Raises InvalidSnapshot, UnsupportedFeatureLevel, and changes nothing."""
        restoring = self.begin_restore(header, chunks)
        while restoring.step():
            pass

    def begin_restore(self, header: Mapping[str, Any], chunks: Iterable[bytes]) -> Restoring:
        """`restore` in slices of some ms; what is applied meanwhile is forgotten with the rest. Raises as it does."""
        limits = read_header(header, self._levels)

        def become(store: Store, sessions: Sessions) -> tuple[Store, Sessions]:
            before = self._store, self._sessions
            self._store, self._sessions = store, sessions
            self._limits, self._leader_time, self._level = limits, header["leader_time"], header["feature_level"]
            self._expiry_due = 0
            return before

        return Restoring(header, chunks, become)

    def state_hash(self) -> bytes:
        """32 bytes over all replicated fields, sessions included. Cost: O(n)."""
        return state_digest(self._store, self._sessions, self._limits, self._leader_time, self._level)

    def check(self) -> None:
        """Verify every internal invariant; AssertionError if one is broken. Cost: O(n); for tests and simulations."""
        self._store.check()
        self._sessions.check(self._leader_time)
        assert self._expiry_due <= min([session.deadline for session in self._sessions.by_id.values()], default=_NEVER)
        assert self._level in self._levels
        assert len(self._store.deletions) <= self._limits.deletions_max

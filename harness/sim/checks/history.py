"""Compares the answers that the clients of a run received with the effects in the log.

Every written value is unique, so a value in the log names the operation that wrote it.

See docs/reference/specification.md#95-outcomes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import cbor2

from harness.recording.history import Row
from harness.sim.engine.errors import Violation, broken, require
from harness.workload.row_fields import answered, asked
from kvstore import (
    Command,
    CommandKind,
    CompareAndSet,
    Consistency,
    OperationFailed,
    Put,
    Response,
    Result,
    ResultCode,
    Txn,
    command_body,
    read_result,
)
from spark_audit import check_rows

CONFIGURATIONS_MAX = 200_000
"""The bound of the linearizability search, in configurations. Here a configuration is a state together with the open
operations that have taken effect. The search runs only if the checker finds no witness (a valid order of all
operations).

Simulated histories have a witness, so the bound is never reached.
"""

NO_FIELDS: Row = dict.fromkeys(
    ("session", "key", "value", "expected", "expected_mod_revision", "request", "output", "error", "return_ns")
) | dict.fromkeys(("revision", "consistency", "node"))

PROPOSED = "a committed entry is the one that was proposed"

BODY_ITEMS = {
    CommandKind.PUT: (2, 4),
    CommandKind.GET: (1, 2),
    CommandKind.DELETE: (1,),
    CommandKind.COMPARE_AND_SET: (3,),
    CommandKind.TXN: (3,),
}
"""For each kind of command: how many items may follow the kind in the log, for a command without and with options."""

NOT_CARRIED_OUT = {
    ResultCode.BUSY,
    ResultCode.SESSION_EXPIRED,
    ResultCode.REQUEST_CLOSED,
    ResultCode.AUTH_REVISION_OLD,
}
"""Results that a session does not keep: a later attempt under the same request number may end differently."""


class HistoryChecker:
    """Keeps and checks all history rows of a run. `cover` is called with the coverage points that the rows hit."""

    def __init__(self, seed: int, cover: Callable[[str], None], *, trusts_clocks: bool = True) -> None:
        self._trusts_clocks = trusts_clocks
        # Pairs (true time in ns, greatest revision in any answer up to that time), both rising.
        self._told: list[tuple[int, int]] = []
        self._run_id, self._cover = f"simulation-{seed}", cover
        self.rows: list[Row] = []
        self._by_request: dict[tuple[int, int], Any] = {}  # The result of each request, by (session, request number).
        self._op_of: dict[bytes, int] = {}  # The op_id of the operation with each value.
        self._asked: dict[bytes, Command] = {}  # The command with each value.
        self._results: dict[int, Any] = {}  # The results of writes that were carried out, by op_id.
        self._failed: dict[bytes, int] = {}  # The operation of each value whose write was reported as failed.
        self._written: dict[bytes, int] = {}  # For each value, the index of the entry that wrote it.
        self._told_revision = 0  # The greatest revision in any answer so far.
        # The greatest revision in any answer before an operation was called, by the op_id of the operation.
        self._revision_min: list[int] = []

    def counts(self) -> dict[str, int]:
        """Return how many operations ended in each way."""
        statuses = [str(row["status"]) for row in self.rows]
        return {f"operations {status}": statuses.count(status) for status in ("ok", "fail", "unknown")}

    # The methods below record the operations of the clients.

    def called(self, client: str, session_id: int, command: Command, now_ns: int) -> Row:
        """Add the row of an operation that begins. The row is `unknown` until the operation ends."""
        row: Row = {
            "run_id": self._run_id,
            "op_id": len(self.rows),
            "client": client,
            "session": session_id or None,
            **asked(command),
            "call_ns": now_ns,
            "clock_id": "simulation",
            "status": "unknown",
        }
        for value in values_of(command):
            self._op_of[value] = len(self.rows)
            self._asked[value] = command
        self._revision_min.append(self._told_revision)
        self.rows.append(row)
        return row

    def failed(self, row: Row, command: Command, error: OperationFailed, now_ns: int) -> None:
        """Record that an operation certainly had no effect, and can have no effect later."""
        row |= {"status": "fail", "error": error.word, "return_ns": now_ns}
        for value in values_of(command):
            require(
                value not in self._written,
                "a request that failed for certain is never carried out",
                f"{row} was written at {self._written.get(value)}",
            )
            self._failed[value] = self._op_of[value]

    def lost(self, command: Command) -> None:
        """Record a member's answer that an accepted write is lost, so that the write certainly has no effect."""
        for value in values_of(command):
            require(
                value not in self._written,
                "a write that an answer reports as lost is never carried out",
                f"{command} was written at {self._written.get(value)}",
            )
            self._failed[value] = self._op_of[value]

    def answered(self, row: Row, response: Response, now_ns: int) -> Result:
        """Record the answer of a member, and return its result.

        The answer must not have a lower revision than any answer given before the call. A local read is exempt, and a
        bounded read may be as old as its answer states.
        """
        consistency = Consistency(response.consistency or Consistency.LINEARIZABLE)
        if consistency is Consistency.BOUNDED:
            self._check_age(row, response)
        else:
            self._check_revision(row, response.revision, consistency)
        result = read_result((response.code, response.revision, *response.fields))
        self._end(row, result, consistency, response.node_id, now_ns)
        return result

    def told(self, row: Row, result: Result, consistency: Consistency, node_id: str, now_ns: int) -> None:
        """Record a result that a member has told in another protocol, with the same check of its revision."""
        self._check_revision(row, result.revision, consistency)
        self._end(row, result, consistency, node_id, now_ns)

    def _end(self, row: Row, result: Result, consistency: Consistency, node_id: str, now_ns: int) -> None:
        if result.revision > self._told_revision:
            self._told_revision = result.revision
            self._told.append((now_ns, result.revision))
        row |= {
            "status": "ok",
            "return_ns": now_ns,
            "output": answered(result),
            "revision": result.revision,
            "consistency": consistency.word,
            "node": node_id,
        }

    def _check_revision(self, row: Row, revision: int, consistency: Consistency) -> None:
        least = self._revision_min[int(str(row["op_id"]))]
        if revision < least and consistency is not Consistency.LOCAL:
            broken(
                "an answer is not older than any answer given before its request",
                f"{row} is answered at revision {revision}, {least} had been told",
            )

    def _check_age(self, row: Row, response: Response) -> None:
        """Check that a bounded read is no older than the age in its answer.

        The time of the call minus the age in the answer is a moment in the past. The read must have at least the
        greatest revision in any answer that was given before that moment.
        """
        if not self._trusts_clocks:
            return
        since_ns = int(str(row["call_ns"])) - int(response.fields[1]) * 1_000_000
        place = bisect_left(self._told, (since_ns, 0))
        if place and self._told[place - 1][1] > response.revision:
            broken(
                "a bounded read is no older than it says",
                f"{row} is answered at {response.revision}, {response.fields[1]} ms old",
                f"{self._told[place - 1]} had been told",
            )

    # The methods below check the effects in the log.

    def carried_out(self, index: int, command: Sequence[Any], result: Any) -> None:
        """Check a command of the log and its result, when the first member has applied the command."""
        session_id, request_no, _, kind, *body = command
        if result[0] != ResultCode.OK:
            self._cover(f"answered {ResultCode(result[0]).name.lower()}")
        if result[0] in NOT_CARRIED_OUT:
            return
        if session_id and request_no:
            known = self._by_request.get((session_id, request_no))
            self._by_request[session_id, request_no] = result
            if known is not None:
                require(
                    known == result,
                    "a session's request is carried out at most once",
                    f"request {request_no} of session {session_id} gave {known}, and {result} at {index}",
                )
                self._cover("a retry found its result in the session")
                return
        for value in written_values(kind, body, result):
            asked_for = self._asked.get(value)
            if asked_for is None or as_in_log(command_body(asked_for)) != as_in_log((kind, *body)):
                broken(PROPOSED, f"{command} is committed at {index}, and what was asked for is {asked_for}")
            self._wrote(value, index, result)

    def _wrote(self, value: bytes, index: int, result: Any) -> None:
        require(value not in self._written, "nothing is carried out twice", value, index, self._written.get(value))
        require(
            value not in self._failed,
            "a request that failed for certain is never carried out",
            f"{value!r} is written at {index}, operation {self._failed.get(value)} had failed",
        )
        self._written[value] = index
        self._results[self._op_of[value]] = result

    # The methods below compare the recording with the log.

    def check(self, *, is_unclear: bool = False) -> None:
        """Judge the whole history, first with the outcomes that the clients saw.

        If the verdict is undecided, the history is judged again, and the outcomes in the log replace the unknown
        outcomes.

        `is_unclear`: True if the store is also changed by clients that are not in the history, or if many writes end
        without a known outcome. An unknown write may then have happened at many points, and the search would take long,
        so the outcomes in the log are used at once.
        """
        rows = [NO_FIELDS | row for row in self.rows]
        if is_unclear or not self._is_decided(rows):
            self._cover("a history was decided with hindsight")
            if not self._is_decided([self._with_hindsight(row) for row in rows]):
                self._cover("a history stayed undecided")

    def _is_decided(self, rows: Sequence[Row]) -> bool:
        """Return False if the checker cannot decide. Raises Violation if the history is not linearizable."""
        verdict = check_rows(rows, configurations_max=CONFIGURATIONS_MAX)
        if verdict.violations:
            words = "; ".join(violation.words() for violation in verdict.violations)
            raise Violation("the history of the clients is linearizable", words)
        return verdict.exit_code == 0

    def _with_hindsight(self, row: Row) -> Row:
        """Return the row of an unknown write with the outcome that the log shows.

        A write that was carried out counts as answered at the end of the run. A write that was not carried out counts
        as failed.
        """
        if row["status"] != "unknown" or row["op"] == "delete":
            return row
        end_ns = max(int(str(other["call_ns"])) for other in self.rows) + 1
        result = self._results.get(int(str(row["op_id"])))
        if result is None:
            return row | {"status": "fail", "return_ns": end_ns}
        output = answered(read_result(result))
        return row | {"status": "ok", "return_ns": end_ns, "output": output, "revision": result[1]}


class Mark(NamedTuple):
    """The items that a member adds to a command when it judges the command: the auth revision under which it judges,
    and the user. The user is empty if the command is the member's own.
    """

    auth_revision: int
    user: str


def read_commands(index: int, payload: bytes) -> tuple[int, list[list[Any]]]:
    """The leader_time and the commands of a committed entry, without marks. Raises Violation if `payload` cannot be
    read."""
    leader_time, marked = read_marked_commands(index, payload)
    return leader_time, [command for command, _ in marked]


def read_marked_commands(index: int, payload: bytes) -> tuple[int, list[tuple[list[Any], Mark | None]]]:
    """The leader_time of a committed entry, and its commands, each with its mark or None. Raises Violation if `payload`
    cannot be read.

    See docs/reference/specification.md#816-users-and-roles.
    """
    try:
        leader_time, *items = cbor2.loads(payload)
        commands = [_without_mark(item) for item in items]
        are_sound = isinstance(leader_time, int) and all(is_command(command) for command, _ in commands)
    except (ValueError, TypeError, EOFError, cbor2.CBORDecodeError):
        are_sound = False
    if not are_sound:
        broken(PROPOSED, f"at {index} nobody can read {payload.hex()}")
    return leader_time, commands


def _without_mark(item: Any) -> tuple[Any, Mark | None]:
    """Return an item of the log as the command that a client has sent, and the mark of the member; None without one."""
    match item:
        case [session_id, request_no, acknowledged_up_to, CommandKind.JUDGED, int() as revision, str() as user, *body]:
            return [session_id, request_no, acknowledged_up_to, *body], Mark(revision, user)
    return item, None


def is_command(item: Any) -> bool:
    """True if `item` looks like a command in the log: three numbers, the kind, and as many items as the kind needs."""
    return (
        isinstance(item, list)
        and len(item) > 3
        and all(isinstance(number, int) for number in item[:4])
        and len(item) - 4 in BODY_ITEMS.get(item[3], (len(item) - 4,))
    )


def as_in_log(item: Any) -> Any:
    """Turn tuples into lists, so that a command can be compared with a command from the log."""
    return [as_in_log(part) for part in item] if isinstance(item, tuple | list) else item


def values_of(command: Command) -> list[bytes]:
    """The values that a command would write; every value is unique in a run."""
    match command:
        case Put(value=value) | CompareAndSet(value=value):
            return [value]
        case Txn(success=success, failure=failure):
            return [operation.value for operation in (*success, *failure) if isinstance(operation, Put)]
    return []


def written_values(kind: int, body: Sequence[Any], result: Sequence[Any]) -> list[bytes]:
    """The values that a command in the log has written, judged by its result."""
    if result[0] != ResultCode.OK:
        return []
    match kind:
        case CommandKind.PUT:
            return [body[1]]
        case CommandKind.COMPARE_AND_SET if result[2][1]:
            return [body[1]]
        case CommandKind.TXN:
            branch = body[1] if result[2][1] else body[2]
            return [operation[2] for operation in branch if operation[0] == CommandKind.PUT]
    return []

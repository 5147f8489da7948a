"""Turns events into rows: pairs each completion with its invocation, and yields the row as soon as both are read.

Only three things are kept in memory: the open operations, the names of the keys, and the processes whose last operation
has an unknown outcome, because such a process must not be used again.

A history lists its events in the order in which they happened. Jepsen, Knossos and Porcupine decide by this order, not
by `:time`, so stamps must increase from line to line. The stamp of a line is its `:time` if this is greater than the
previous stamp, otherwise the previous stamp plus 1 ns. In a history without `:time`, the stamp of line n is n ms. So a
displayed time in ms is the number of the line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from spark_audit.imports.events import Event, Settings, refused

# A thread reads the clock before it writes the line of an event. So the time of a line may be earlier than the time of
# the line before it, by at most this much.
BACKWARDS_NS_MAX = 10**9
LINE_NS = 10**6  # The distance between the stamps of two lines without :time.
_CLIENT_OF_INITIAL = "initial"
_PHRASES = {"get": "read", "put": "write", "cas": "compare-and-set", "append": "append"}


@dataclass(slots=True)
class EventCounts:
    """The counts of one history.

    `initial`: the number of puts that stand for initial values. `silent_cas`: the number of failed compare-and-sets
    whose line names an error instead of the value that was found.
    """

    ok: int = 0
    fail: int = 0
    unknown: int = 0
    initial: int = 0
    silent_cas: int = 0


@dataclass(slots=True)
class Pairing:
    """The pairing of one history. `initial`: the value that each key has before its first operation."""

    run_id: str
    initial: str
    settings: Settings
    counts: EventCounts = field(default_factory=EventCounts)
    # Process → the call of its open operation, the stamp of the call, and the op_id.
    _open: dict[int, tuple[Event, int, int]] = field(default_factory=dict)
    # Process → the line on which its operation ended with :info.
    _crashed: dict[int, int] = field(default_factory=dict)
    _keys: set[str] = field(default_factory=set)
    _op_id: int = 0
    _stamp: int = 0  # The stamp of the last event.
    _time: int = 0  # The latest :time.

    def rows(self, events: Iterable[Event]) -> Iterator[dict[str, Any]]:
        """Yield a row for each operation as soon as it ends; at the end, yield the rows of operations that never ended.

        Raises NotImportable.
        """
        for event in events:
            stamp = self._stamped(event)
            if event.type == "invoke":
                if event.key not in self._keys:
                    yield self._initial_row(event.key, stamp)
                self._invoke(event, stamp)
            else:
                yield self._completed(event, stamp)
        for process in sorted(self._open):
            call, called, op_id = self._open[process]
            yield self._row(call, called, op_id, "unknown", None, "never completed")

    def _stamped(self, event: Event) -> int:
        time_ns = event.time_ns
        if time_ns is not None:
            if time_ns < self._time - BACKWARDS_NS_MAX:
                raise refused(event.line, f"lines in the order of time, here a :time of {self._time} or later", time_ns)
            self._time = max(self._time, time_ns)
        self._stamp = max(self._stamp + 1, event.line * LINE_NS if time_ns is None else time_ns)
        return self._stamp

    def _invoke(self, event: Event, stamp: int) -> None:
        process = event.process
        if process in self._open:
            before = self._open[process][0].line
            raise refused(
                event.line, f"the end of the operation of process {process} from line {before}", "another invocation"
            )
        if process in self._crashed:
            reason = f"a new process number: the operation of {process} ended unknown on line {self._crashed[process]}"
            raise refused(event.line, reason, f"process {process} going on")
        self._open[process] = (event, stamp, self._next_id())

    def _completed(self, event: Event, stamp: int) -> dict[str, Any]:
        if event.process not in self._open:
            raise refused(event.line, f"an invocation by process {event.process} before this line", f":{event.type}")
        call, called, op_id = self._open.pop(event.process)
        _check_same(call, event)
        if event.type == "info":
            self._crashed[event.process] = event.line
            return self._row(call, called, op_id, "unknown", None, event.error or "info")
        if event.type == "fail":
            if call.op == "cas" and self.settings.failed_cas_saw_another:
                if event.error is None:
                    output = {"succeeded": False, "found": True}
                    return self._row(call, called, op_id, "ok", stamp, None, output)
                self.counts.silent_cas += 1
            return self._row(call, called, op_id, "fail", stamp, event.error or "fail")
        if call.op != "get":
            return self._row(call, called, op_id, "ok", stamp, None, {"succeeded": True})
        if event.value is None:
            return self._row(call, called, op_id, "fail", stamp, "nil")
        return self._row(call, called, op_id, "ok", stamp, None, {"found": True, "value": event.value})

    def _initial_row(self, key: str, stamp: int) -> dict[str, Any]:
        """Return a put of the initial value. The put precedes every other operation on the key.

        Because of this put, an initial nil or empty text is handled like any other value.
        """
        self._keys.add(key)
        self.counts.initial += 1
        call = Event(0, 0, "invoke", "put", key, self.initial)
        row = self._row(call, stamp - 1, self._next_id(), "ok", stamp - 1, None, {"succeeded": True})
        return row | {"client": f"{_CLIENT_OF_INITIAL} {key}"}

    def _next_id(self) -> int:
        self._op_id += 1
        return self._op_id - 1

    def _row(
        self,
        call: Event,
        called: int,
        op_id: int,
        status: str,
        returned: int | None,
        error: str | None,
        output: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        row: dict[str, Any] = {"run_id": self.run_id, "op_id": op_id, "client": str(call.process), "op": call.op}
        row |= {"key": call.key, "status": status, "call_ns": called, "return_ns": returned, "clock_id": "history"}
        if call.op != "get":
            row["value"] = call.value
        if call.op == "cas":
            row["expected"] = call.expected
        if error is not None:
            row["error"] = error
        if output is not None:
            row["output"] = output
        setattr(self.counts, status, getattr(self.counts, status) + 1)
        return row


def _check_same(call: Event, end: Event) -> None:
    """Check that the completion belongs to this call. If the completion is not :ok, its key and its value are not
    compared."""
    if end.op != call.op:
        raise refused(
            end.line, f"the end of the {_PHRASES[call.op]} of line {call.line}", f"that of a {_PHRASES[end.op]}"
        )
    if end.type != "ok":
        return
    if end.key != call.key:
        raise refused(end.line, f"key {call.key}, as on line {call.line}", end.key)
    if call.op != "get" and (end.value, end.expected) != (call.value, call.expected):
        raise refused(end.line, f"the value of line {call.line}, {_value(call)}", _value(end))


def _value(event: Event) -> str | None:
    return f"[{event.expected} {event.value}]" if event.op == "cas" else event.value

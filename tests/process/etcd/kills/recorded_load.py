"""Workers that use etcd's interface, and record what they saw: the operations of the harness, and one watch of all
keys."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import count, groupby
from pathlib import Path
from random import Random
from typing import Any

from harness.recording.clock import RunClock
from harness.recording.history import WRITES, Row, RunWriter, canonical_json, to_text
from harness.workload.operation_generator import OperationSource, View, key_names
from harness.workload.row_fields import answered, asked
from harness.workload.watch_recorder import EVENTS_PER_ROW_MAX
from kvstore import Command, CompareAndSet, CompareAndSetResult, Get, GetResult, Put, Range, RangeResult, Result
from tests.process.etcd.kills.foreign_stores import CHANNEL_OPTIONS, ForeignStore, NoAnswer, execute, grpc
from tests.process.etcd.kills.shapes import Fields, from_protobuf, to_protobuf
from tests.process.etcd.messages import Message

HASTE_SECONDS = 0.15  # Shorter than an election, so that some outcomes are unknown.
HASTY_SHARE = 0.1
FINAL_SECONDS = 10.0  # The patience of the final reads.
PAUSE_SECONDS = 0.02  # Bounds the rate of a worker.
REFUSED_PAUSE_SECONDS = 0.1  # Bounds the rate of attempts at a member that is down.
WAIT_SECONDS_MAX = 60.0


class Recorder:
    """Writes the run, for several threads."""

    def __init__(self, folder: Path) -> None:
        about: dict[str, object] = {}
        self._writer = RunWriter(folder, run_id="r", clock=RunClock(), ops_format="jsonl", about=about)
        self._changed = threading.Condition()
        self.outcomes: Counter[str] = Counter()

    def now_ns(self) -> int:
        return self._writer.clock.now_ns()

    def call(self, **known: object) -> int:
        """Note a call. Returns its op_id."""
        with self._changed:
            return self._writer.call({**known, "call_ns": self.now_ns()})

    def end(self, op_id: int, status: str, **outcome: object) -> Row:
        """Note how a call has ended."""
        returned = None if status == "unknown" else self.now_ns()
        with self._changed:
            self.outcomes[status] += 1
            self._changed.notify_all()
            return self._writer.end(op_id, status=status, return_ns=returned, **outcome)

    def wait_for(self, more: int) -> None:
        """Wait until this many more operations have succeeded."""
        with self._changed:
            wanted = self.outcomes["ok"] + more
            assert self._changed.wait_for(lambda: self.outcomes["ok"] >= wanted, WAIT_SECONDS_MAX), self.outcomes

    def finish(self) -> None:
        self._writer.finish()


class Worker:
    """Carries out one operation after the other. It goes to another member after an error, and now and then."""

    def __init__(self, recorder: Recorder, number: int, open_stores: Sequence[Callable[[], ForeignStore]]) -> None:
        self._recorder, self._number = recorder, number
        self._stores = [each() for each in open_stores]
        self._at = number % len(self._stores)
        self._lives = count()
        self._name = self._new_name()
        self._random = Random(f"worker {number}")

    def run(self, source: OperationSource, view: View, stop: threading.Event, patience_seconds: float) -> None:
        """Work until `stop` is set."""
        while not stop.wait(PAUSE_SECONDS):
            seconds = HASTE_SECONDS if self._random.random() < HASTY_SHARE else patience_seconds
            command = source.next().command
            result = self.perform(command, seconds)
            if result is None or self._random.random() < 0.05:
                self._at = (self._at + 1) % len(self._stores)
            if result is None:
                stop.wait(REFUSED_PAUSE_SECONDS)
            else:
                _learn(view, command, result)
        self.close()

    def perform(self, command: Command, seconds: float) -> Result | None:
        """Carry out an operation, and record it. Returns None if it was not answered."""
        known = asked(command)
        op_id = self._recorder.call(client=self._name, **known)
        try:
            result = execute(self._stores[self._at], command, seconds)
        except NoAnswer as error:
            is_failed = error.is_certain or known["op"] not in WRITES
            self._recorder.end(op_id, "fail" if is_failed else "unknown", error=error.text)
            if not is_failed:
                self._name = self._new_name()
            return None
        output = answered(result, command)
        self._recorder.end(op_id, "ok", output=output, revision=result.revision)
        return result

    def close(self) -> None:
        for store in self._stores:
            store.close()

    def _new_name(self) -> str:
        return f"c{self._number}.{next(self._lives)}"


class Watcher:
    """One watch of all keys, which continues at the next member when its stream breaks. Every stream is a row."""

    def __init__(self, recorder: Recorder, endpoints: Sequence[str]) -> None:
        self._recorder, self._endpoints = recorder, endpoints
        self._delivered = 1  # The revision of an empty store.
        self._resumes: int | None = None
        self._stream: Any = None
        self._moved, self._stopped = threading.Condition(), threading.Event()
        self.revisions: list[int] = []  # One for each event.

    def run(self) -> None:
        """Watch until `stop` is called."""
        for life in count():
            if self._stopped.is_set():
                return
            if not self._follow(self._endpoints[life % len(self._endpoints)], life):
                self._stopped.wait(REFUSED_PAUSE_SECONDS)

    def wait_until(self, revision: int) -> None:
        """Wait until everything up to this revision is delivered."""
        with self._moved:
            is_there = self._moved.wait_for(lambda: self._delivered >= revision, WAIT_SECONDS_MAX)
        assert is_there, f"the watch has seen revision {self._delivered} of {revision}"

    def stop(self) -> None:
        """End the watch."""
        with self._moved:
            self._stopped.set()
            if self._stream is not None:
                self._stream.cancel()

    def _follow(self, endpoint: str, life: int) -> bool:
        """Record one stream. Returns False if the watch could not begin."""
        request = {
            "start": None, "end": None, "prefix": None, "from_revision": self._delivered + 1, "only": None,
            "previous": True, "resumes": self._resumes,
        }  # fmt: skip
        op_id = self._recorder.call(client=f"watch.{life}", op="watch", request=canonical_json(request))
        answer: dict[str, Any] = {"created_revision": self._delivered, "messages": []}
        is_created, error_text = False, ""
        with grpc.insecure_channel(endpoint, options=CHANNEL_OPTIONS) as channel:
            try:
                for response in self._responses(channel):
                    assert not response["canceled"], response
                    is_created = is_created or response["created"]
                    self._take(response, answer["messages"])
                    if sum(len(each[2]) for each in answer["messages"]) >= EVENTS_PER_ROW_MAX:
                        break
            except grpc.RpcError as error:
                error_text = str(error)
        if not is_created:
            self._recorder.end(op_id, "fail", error=error_text)
            return False
        answer["end"] = "broken" if error_text and not self._stopped.is_set() else "cancelled"
        self._recorder.end(op_id, "ok", output={"answer": canonical_json(answer)})
        self._resumes = op_id
        return True

    def _responses(self, channel: Any) -> Iterator[Fields]:
        create = {"key": b"\0", "range_end": b"\0", "start_revision": self._delivered + 1, "prev_kv": True}
        ended = threading.Event()

        def requests() -> Iterator[bytes]:
            yield to_protobuf("Watch", {"create_request": create})
            ended.wait()

        with self._moved:
            if self._stopped.is_set():
                return
            self._stream = channel.stream_stream("/etcdserverpb.Watch/Watch")(requests())
        try:
            for response in self._stream:
                yield from_protobuf("WatchResponse", Message(response))
        finally:
            ended.set()

    def _take(self, response: Fields, messages: list[Any]) -> None:
        """Note the events of a response, with one message for each revision."""
        now = self._recorder.now_ns()
        for revision, events in groupby(response["events"], lambda event: event["kv"]["mod_revision"]):
            told = [_event(each) for each in events]
            messages.append([now, revision, told])
            self.revisions.append(revision)
            with self._moved:
                self._delivered = revision
                self._moved.notify_all()


def read_all(recorder: Recorder, keys: Sequence[bytes], store: Callable[[], ForeignStore]) -> int:
    """Read every key, and then all of them at once. Returns the revision of the store."""
    worker = Worker(recorder, 1000, [store])
    for key in keys:
        assert worker.perform(Get(key), FINAL_SECONDS) is not None
    found = worker.perform(Range(), FINAL_SECONDS)
    worker.close()
    assert isinstance(found, RangeResult)
    return found.revision


def source_of(number: int, keys: Sequence[bytes], view: View) -> OperationSource:
    """The operations of a worker: puts, gets, deletions, compare-and-sets, ranges and transactions."""
    return OperationSource(seed=1, worker=number, keys=keys, view=view)


def few_keys() -> list[bytes]:
    """The keys of a run, for which the workers compete."""
    return key_names(8)


def _learn(view: View, command: Command, result: Result) -> None:
    """Note the records that were seen, so that the next compare-and-set expects them."""
    match command, result:
        case Put(key, value), _:
            view.saw(key, value, result.revision)
        case (Get(key), GetResult(record=record)) | (
            CompareAndSet(key),
            CompareAndSetResult(succeeded=False, record=record),
        ):
            if record is None:
                view.gone(key)
            else:
                view.saw(key, record.value, record.mod_revision)
        case _, RangeResult(items=items):
            for item in items:
                if item.value is not None:
                    view.saw(item.key, item.value, item.mod_revision)


def _event(event: Fields) -> list[Any]:
    kv, before = event["kv"], event.get("prev_kv")
    kind, value = ("delete", None) if event["type"] else ("put", to_text(kv["value"]))
    previous = None
    if before is not None:
        numbers = [before[name] for name in ("create_revision", "mod_revision", "version", "lease")]
        previous = [to_text(before["value"]), *numbers]
    key = to_text(kv["key"])
    return [kv["mod_revision"], kind, key, value, kv["create_revision"], kv["version"], kv["lease"], previous]

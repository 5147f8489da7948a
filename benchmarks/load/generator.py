"""The lean load generator: one process with one event loop for all connections.

`python -m benchmarks.load.generator` reads a `LoadSpec` from stdin and prints a `LoadResult`. A load is a closed loop,
an open loop, or a fill, which puts every key once. In a closed loop, a latency begins just before the request is handed
to the kernel. In an open loop, a latency begins when the request is *due*, so that neither a late generator nor a
stalled server can hide a delay. In both, a latency ends when the answer has been read from the socket.
"""

from __future__ import annotations

import gc
import select
import ssl
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice

from benchmarks.load.bare_wire import BareDialect
from benchmarks.load.dialect import RECEIVE_BYTES_MAX, Dialect, dialed
from benchmarks.load.etcd_wire import EtcdDialect
from benchmarks.load.highwatermark_wire import HighwatermarkDialect
from benchmarks.load.spec import LoadResult, LoadSpec
from benchmarks.load.workload import Operation, drawn, filling, values_of
from benchmarks.measure.statistics import latencies_ms
from benchmarks.measure.usage import cpu_seconds

DRAIN_SECONDS_MAX = 20.0
"""How long the generator waits for answers after the window. Later answers are counted as unanswered."""

BATCH_MAX = 512
"""The most operations that an open loop writes at a time, so that even a late generator reads answers in between."""


class Connection:
    """A socket with its dialect, its open requests, and its next operations."""

    def __init__(self, spec: LoadSpec, dialect: Dialect, operations: Iterator[Operation]) -> None:
        self.link = dialed(spec.endpoints[0], spec.tls_ca, spec.tls_cert)
        self.dialect, self.operations = dialect, operations
        self.revision = dialect.setup(self.link)
        self.open: dict[int, float] = {}  # token → when its latency began, in the order of the tokens.
        self.next_token = 0
        self.puts = 0
        self.unsent = b""
        self.link.setblocking(False)

    def issue(self, moments: list[float]) -> int:
        """Write one operation for each moment, or fewer if not enough are left. Returns how many were written."""
        batch = list(islice(self.operations, len(moments)))
        answered_below = next(iter(self.open)) if self.open else self.next_token
        self.dialect.write(batch, answered_below)
        self.open.update(zip(range(self.next_token, self.next_token + len(batch)), moments, strict=False))
        self.next_token += len(batch)
        self.puts += sum([is_put for _, is_put in batch])
        return len(batch)

    def flush(self) -> None:
        """Send the data that the dialect's flow control allows and that fit into the socket's buffer."""
        data = self.unsent + self.dialect.take_output()
        if data:
            try:
                sent = self.link.send(data)
            except (BlockingIOError, ssl.SSLWantWriteError):
                sent = 0
            self.unsent = data[sent:]

    def receive(self) -> list[float]:
        """Read once from the socket. Returns the time at which the latency of each answered operation began."""
        try:
            data = self.link.recv(RECEIVE_BYTES_MAX)
        except ssl.SSLWantReadError:  # So far, only a part of a TLS record has arrived.
            return []
        if not data:
            raise ConnectionError("the server closed a connection")
        pop = self.open.pop
        return [pop(token) for token in self.dialect.read(data)]


class Load:
    """One run of the load."""

    def __init__(self, spec: LoadSpec) -> None:
        self.spec = spec
        values = values_of(spec.value_bytes, spec.seed)
        kinds: dict[str, Callable[[list[bytes], str], Dialect]] = {
            "highwatermark": partial(HighwatermarkDialect, acknowledge=spec.acknowledge),
            "etcd": EtcdDialect,
            "bare": BareDialect,
        }
        kind = kinds[spec.kind]
        self.connections = [
            Connection(spec, kind(values, spec.work), self._operations(number)) for number in range(spec.connections)
        ]
        self.by_fileno = {connection.link.fileno(): connection for connection in self.connections}
        self.latencies: list[float] = []
        self.answers = 0

    def _operations(self, connection: int) -> Iterator[Operation]:
        if self.spec.fill:
            return filling(self.spec.existing_keys, connection, self.spec.connections)
        return drawn(self.spec.work, self.spec.existing_keys, self.spec.seed, connection)

    def run(self) -> LoadResult:
        """Warm up, measure one window, and wait for the open requests.

        The revisions before and after show whether every put took place.
        """
        before = max(connection.revision for connection in self.connections)
        gc.collect()
        gc.freeze()
        # There is no cyclic garbage to collect, and the pause of a collection would be measured as latency.
        gc.disable()
        start = time.perf_counter()
        self._loop(start, start + self.spec.warmup_seconds)
        self.latencies, answers = [], self.answers
        cpu, own, began = cpu_seconds(self.spec.pids), time.process_time(), time.perf_counter()
        self._loop(start, began + self.spec.seconds)
        ended, own_after, cpu_after = time.perf_counter(), time.process_time(), cpu_seconds(self.spec.pids)
        operations = self.answers - answers
        measured = self.latencies
        self._drain(began, ended, measured)
        for connection in self.connections:
            connection.link.setblocking(True)
        unanswered = sum(len(connection.open) for connection in self.connections)
        after = before if unanswered else self.connections[0].dialect.revision(self.connections[0].link)
        return LoadResult(
            operations=operations,
            seconds=ended - began,
            puts=sum(connection.puts for connection in self.connections),
            revision_before=before,
            revision_after=after,
            latencies_ms=latencies_ms(measured),
            cpu_seconds={name: cpu_after[name] - cpu[name] for name in cpu},
            generator_cpu_seconds=own_after - own,
            errors=dict(sum((connection.dialect.errors for connection in self.connections), Counter())),
            unanswered=unanswered,
        )

    def _loop(self, start: float, until: float) -> None:
        if self.spec.rate:
            self._open_loop(start, until)
        else:
            self._closed_loop(until)

    def _closed_loop(self, until: float) -> None:
        """Keep `in_flight` requests open until the time `until`.

        A fill continues after `until` if some keys have not been put yet.
        """
        share = self.spec.in_flight // len(self.connections)
        for connection in self.connections:
            self._issue_now(connection, share - len(connection.open))
        while (now := time.perf_counter()) < until or (self.spec.fill and any(c.open for c in self.connections)):
            for connection in self._readable(1.0 if self.spec.fill else until - now):
                began = connection.receive()
                moment = time.perf_counter()
                self.latencies += [moment - each for each in began]
                self.answers += len(began)
                self._issue_now(connection, len(began))

    def _issue_now(self, connection: Connection, count: int) -> None:
        if count > 0:
            connection.issue([time.perf_counter()] * count)
        connection.flush()

    def _open_loop(self, start: float, until: float) -> None:
        """Issue requests when they are due, at even intervals since `start`, on the connections in turn."""
        rate, connections = self.spec.rate, self.connections
        while (now := time.perf_counter()) < until:
            issued = sum([connection.next_token for connection in connections])
            due = min(int((now - start) * rate) + 1, issued + BATCH_MAX)
            moments = [start + number / rate for number in range(issued, due)]
            for number in range(min(len(moments), len(connections))):
                connection = connections[(issued + number) % len(connections)]
                connection.issue(moments[number :: len(connections)])
                connection.flush()
            next_due = start + due / rate
            for connection in self._readable(min(next_due, until) - time.perf_counter()):
                self._receive_open(connection)

    def _receive_open(self, connection: Connection) -> None:
        began = connection.receive()
        moment = time.perf_counter()
        self.latencies += [moment - each for each in began]
        self.answers += len(began)
        connection.flush()

    def _drain(self, began: float, ended: float, measured: list[float]) -> None:
        """Wait for the answers to all open requests.

        In an open loop, these answers count too if their requests were due in the measured window.
        """
        until = time.perf_counter() + DRAIN_SECONDS_MAX
        while any(connection.open for connection in self.connections) and time.perf_counter() < until:
            for connection in self._readable(0.5):
                moments = connection.receive()
                moment = time.perf_counter()
                if self.spec.rate:
                    measured += [moment - each for each in moments if began <= each < ended]
                connection.flush()

    def _readable(self, timeout_seconds: float) -> list[Connection]:
        """Wait for answers, and meanwhile send the data that a full socket has not yet taken.

        This method uses `select` for its time-outs in microseconds; those of `poll` and `epoll` are in milliseconds.
        """
        stuck = [number for number, connection in self.by_fileno.items() if connection.unsent]
        readable, writable, _ = select.select(list(self.by_fileno), stuck, [], max(timeout_seconds, 0.0))
        for number in writable:
            self.by_fileno[number].flush()
        return [self.by_fileno[number] for number in readable]

    def close(self) -> None:
        """Close all connections."""
        for connection in self.connections:
            connection.link.close()


def main() -> None:
    """Read a spec from stdin, run the load, and print the result."""
    load = Load(LoadSpec.from_json(sys.stdin.read()))
    try:
        print(load.run().to_json())
    except OSError as error:
        raise SystemExit(f"load generator: {error}") from error
    finally:
        load.close()


if __name__ == "__main__":
    main()

"""The loops of the load keep either a fixed number of requests in flight, or a schedule that nothing can slow down."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from benchmarks.load.generator import Load
from benchmarks.load.spec import LoadResult, LoadSpec
from kvstore.protocol.messages import encode_response
from raft import FrameSplitter, Hello, HelloRole, decode_item, frame


class AnsweringServer:
    """A server that speaks our protocol and answers every request. It remembers the largest number of requests that
    came in one read."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.puts = self.at_once_max = 0
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.listener.getsockname()[1]}"

    def close(self) -> None:
        """End all threads. By now every client has closed its connection."""
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self.listener.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._serve, args=(link,), daemon=True))
            self._threads[-1].start()

    def _serve(self, link: socket.socket) -> None:
        splitter = FrameSplitter(1 << 22)
        hello = Hello(cluster_id=b"c" * 16, group_id=0, node_id="n1", incarnation_id=b"i" * 16, role=HelloRole.PEER)
        link.sendall(frame(hello.encode()))
        is_first = True
        while data := link.recv(1 << 16):
            bodies = splitter.feed(data)
            if is_first and bodies:
                is_first, bodies = False, bodies[1:]
            self.at_once_max = max(self.at_once_max, len(bodies))
            link.sendall(b"".join(map(self._answer, bodies)))
        link.close()

    def _answer(self, body: bytes) -> bytes:
        request_id, kind, what, *_ = decode_item(body)
        if kind == 3:
            return frame(encode_response(request_id, 0, 1 + self.puts, 1, "n1", ((2, None, 0, True),)))
        if what[3] == 16:
            return frame(encode_response(request_id, 0, 1 + self.puts, 0, "n1", ((16, 7, what[4]),)))
        self.puts += 1
        return frame(encode_response(request_id, 0, 1 + self.puts, 0, "n1", ((1,),)))


def a_spec(address: str, **changed: object) -> LoadSpec:
    fields: dict[str, object] = {
        "kind": "highwatermark", "endpoints": [address], "work": "put", "in_flight": 8, "connections": 2, "rate": 0,
        "value_bytes": 16, "existing_keys": 100, "seed": 1, "warmup_seconds": 0.05, "seconds": 0.2,
    }  # fmt: skip
    return LoadSpec(**(fields | changed))  # type: ignore[arg-type]


def run(spec: LoadSpec) -> LoadResult:
    load = Load(spec)
    try:
        return load.run()
    finally:
        load.close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[AnsweringServer]:
    # The real `cpu_seconds` needs an optional package.
    monkeypatch.setattr("benchmarks.load.generator.cpu_seconds", lambda _: {})
    # The test process continues after the load, so its objects must not be frozen.
    monkeypatch.setattr("gc.freeze", lambda: None)
    monkeypatch.setattr("gc.disable", lambda: None)
    answering = AnsweringServer()
    yield answering
    answering.close()


@pytest.mark.timeout(30)
def test_a_closed_loop_has_its_number_in_flight_and_every_put_is_proven(server: AnsweringServer) -> None:
    result = run(a_spec(server.address))

    assert result.operations > 0
    assert server.at_once_max <= 4  # Eight requests in flight on two connections are four on each.
    assert result.revision_after - result.revision_before == result.puts == server.puts
    assert not result.errors
    assert result.unanswered == 0


@pytest.mark.timeout(30)
def test_filling_puts_every_key_once_however_short_the_time(server: AnsweringServer) -> None:
    result = run(a_spec(server.address, fill=True, warmup_seconds=0.0, seconds=0.0, existing_keys=1_001))

    assert result.puts == server.puts == 1_001
    assert result.unanswered == 0


@pytest.mark.timeout(30)
def test_an_open_loop_offers_its_rate_and_no_more(server: AnsweringServer) -> None:
    began = time.perf_counter()
    result = run(a_spec(server.address, rate=500, in_flight=0, warmup_seconds=0.1, seconds=0.4))

    assert result.puts <= 500 * (time.perf_counter() - began) + 1
    assert result.revision_after - result.revision_before == result.puts
    assert result.latencies_ms["p50_ms"] > 0

"""etcd3gw with the adapter that records it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from requests.adapters import HTTPAdapter

from harness.cluster.ports import free_ports
from spark_audit.record import BadSetting, Recorder
from spark_audit.record.adapters import EtcdValue, recorded_etcd
from tests.spark_audit.record.helpers import rows_of, verdict_of

etcd3gw = pytest.importorskip("etcd3gw", reason="etcd3gw is not installed: pip install etcd3gw")

pytestmark = [pytest.mark.process, pytest.mark.timeout(100)]

CALLS = 50


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    with Recorder(tmp_path / "history", values="plain") as recorder:
        yield recorder


@pytest.fixture
def client_of() -> Iterator[Callable[..., Any]]:
    """Makes clients of members, and closes them after the test."""
    clients: list[Any] = []

    def make(endpoint: str, timeout: float = 20) -> Any:
        host, _, port = endpoint.partition(":")
        # With the path, a client needs no request to find it.
        clients.append(etcd3gw.client(host, int(port), timeout=timeout, api_path="/v3/"))
        return clients[-1]

    yield make
    for client in clients:
        client.session.close()


def outcomes(recorder: Recorder) -> list[tuple[Any, ...]]:
    """The rows in the order of their calls: operation, status, error, output."""
    recorder.flush()
    rows = sorted(rows_of(recorder.folder), key=lambda row: row["op_id"])
    return [(row["op"], row["status"], row.get("error"), row.get("output")) for row in rows]


def test_threads_see_a_linearizable_store(
    etcd_endpoints: Sequence[str], client_of: Callable[..., Any], prefix: str, recorder: Recorder
) -> None:
    def work(store: Any, name: str) -> None:
        random, seen = Random(name), {"a": 0, "b": 0}
        for number in range(CALLS):
            key, value = random.choice("ab"), f"{name}-{number}"
            match random.choice(("get", "get", "get", "old", "put", "put_if", "put_if", "delete")):
                case "get":
                    found = store.get(prefix + key)
                    seen[key] = 0 if found is None else found.mod_revision
                case "old":
                    store.get(prefix + key, serializable=True)
                case "put":
                    seen[key] = store.put(prefix + key, value)
                case "put_if":
                    store.put_if(prefix + key, seen[key], value)
                case "delete":
                    store.delete(prefix + key)

    threads = [
        threading.Thread(target=work, args=(recorded_etcd(recorder, client_of(endpoint)), f"client-{place}"))
        for place, endpoint in enumerate(etcd_endpoints)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.close()

    verdict = verdict_of(recorder.folder)
    assert (verdict["status"], verdict["operations"]) == ("linearizable", len(threads) * CALLS)
    assert all(row["revision"] >= 1 for row in rows_of(recorder.folder))


def test_each_call_returns_and_records_what_the_store_did(
    etcd_endpoint: str, client_of: Callable[..., Any], prefix: str, recorder: Recorder
) -> None:
    store = recorded_etcd(recorder, client_of(etcd_endpoint), client="c")
    key = f"{prefix}k"

    assert store.get(key) is None
    assert store.put_if(key, 1, "1") is False
    assert store.put_if(key, 0, "1") is True
    assert store.put_if(key, 0, "2") is False
    revision = store.put(key, b"2")
    assert store.get(key) == EtcdValue(b"2", revision)
    assert store.get(key, serializable=True) == EtcdValue(b"2", revision)
    assert store.put_if(key, revision, "3") is True
    assert store.put_if(key, revision, "4") is False
    assert store.delete(key) is True
    assert store.delete(key) is False

    done = {"succeeded": True}
    found = {"found": True, "value": "2", "mod_revision": revision}
    assert outcomes(recorder) == [
        ("get", "ok", None, {"found": False}),
        ("cas", "ok", None, {"succeeded": False, "found": False}),
        ("cas", "ok", None, done),
        ("cas", "ok", None, {"succeeded": False, "found": True, "value": "1"}),
        ("put", "ok", None, done),
        ("get", "ok", None, found),
        ("get", "ok", None, found),
        ("cas", "ok", None, done),
        ("cas", "ok", None, {"succeeded": False, "found": True, "value": "3"}),
        ("delete", "ok", None, {"found": True}),
        ("delete", "ok", None, {"found": False}),
    ]
    rows = sorted(rows_of(recorder.folder), key=lambda row: row["op_id"])
    assert [row.get("consistency") for row in rows[5:7]] == [None, "local"]
    assert [row.get("expected_mod_revision") for row in rows[7:9]] == [revision, revision]
    recorder.close()
    assert verdict_of(recorder.folder)["status"] == "linearizable"


def test_errors_that_prove_that_nothing_happened(
    etcd_endpoint: str, client_of: Callable[..., Any], prefix: str, recorder: Recorder
) -> None:
    (port,) = free_ports(1)
    with pytest.raises(etcd3gw.exceptions.ConnectionFailedError):
        recorded_etcd(recorder, client_of(f"127.0.0.1:{port}")).put(f"{prefix}k", "v")
    with pytest.raises(etcd3gw.exceptions.Etcd3Exception):
        recorded_etcd(recorder, client_of(etcd_endpoint)).put(f"{prefix}k", "v" * 1_600_000)

    assert [each[:3] for each in outcomes(recorder)] == [
        ("put", "fail", "ConnectionFailedError"),
        ("put", "fail", "Etcd3Exception"),
    ]


def test_a_server_that_does_not_answer_leaves_writes_unknown(client_of: Callable[..., Any], recorder: Recorder) -> None:
    def hang_up() -> None:
        connection, _ = listener.accept()
        connection.recv(1)
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(etcd3gw.exceptions.ConnectionTimeoutError):
            recorded_etcd(recorder, client_of(endpoint, timeout=0.05), client="c").put("k", "v")
        listener.accept()[0].close()
        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(etcd3gw.exceptions.ConnectionFailedError):
            recorded_etcd(recorder, client_of(endpoint), client="c").delete("k")
        thread.join()

    assert [each[:3] for each in outcomes(recorder)] == [
        ("put", "unknown", "ConnectionTimeoutError"),
        ("delete", "unknown", "ConnectionFailedError"),
    ]


def test_other_clients_and_revisions_are_refused(client_of: Callable[..., Any], recorder: Recorder) -> None:
    not_a_client: Any = None
    with pytest.raises(BadSetting, match=r"give an etcd3gw\.Etcd3Client"):
        recorded_etcd(recorder, not_a_client)
    store = client_of("127.0.0.1:1")
    with pytest.raises(BadSetting, match="expected_mod_revision is -1"):
        recorded_etcd(recorder, store).put_if("k", -1, "v")
    store.session.mount("http://", HTTPAdapter(max_retries=3))
    with pytest.raises(BadSetting, match="again after an error"):
        recorded_etcd(recorder, store)

    assert outcomes(recorder) == []

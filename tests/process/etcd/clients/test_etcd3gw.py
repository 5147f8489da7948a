"""etcd3gw: a client of Python over the JSON gateway, with the library requests."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

etcd3gw = pytest.importorskip("etcd3gw", reason="etcd3gw is not installed: pip install etcd3gw")

pytestmark = [pytest.mark.process, pytest.mark.timeout(100)]


@pytest.fixture
def client(etcd_endpoint: str) -> Iterator[Any]:
    host, _, port = etcd_endpoint.partition(":")
    client = etcd3gw.client(host, int(port), timeout=20)
    yield client
    client.session.close()


def test_the_client_finds_the_path_by_the_version(client: Any) -> None:
    assert client.api_path == "/v3/"


def test_keys(client: Any, prefix: str) -> None:
    assert client.get(f"{prefix}k") == []
    assert client.put(f"{prefix}k", "one")
    assert client.get(f"{prefix}k") == [b"one"]
    ((value, metadata),) = client.get(f"{prefix}k", metadata=True)
    assert (value, metadata["key"], metadata["version"]) == (b"one", f"{prefix}k".encode(), "1")
    assert client.delete(f"{prefix}k") is True
    assert client.delete(f"{prefix}k") is False


def test_binary_and_empty_values(client: Any, prefix: str) -> None:
    client.put(f"{prefix}bytes", bytes(range(256)))
    client.put(f"{prefix}empty", b"")

    assert client.get(f"{prefix}bytes") == [bytes(range(256))]
    assert client.get(f"{prefix}empty") == [b""]


def test_ranges(client: Any, prefix: str) -> None:
    for name, value in (("b", "1"), ("a", "2"), ("c", "0")):
        client.put(prefix + name, value)

    assert [value for value, _ in client.get_prefix(prefix)] == [b"2", b"1", b"0"]
    assert [value for value, _ in client.get_prefix(prefix, "ascend", "value")] == [b"0", b"1", b"2"]
    assert [value for value, _ in client.get_prefix(prefix, "descend", "mod")] == [b"0", b"2", b"1"]
    assert client.get(f"{prefix}a", range_end=f"{prefix}c", limit=1) == [b"2"]
    assert client.get(f"{prefix}a", range_end=f"{prefix}c", keys_only=True) == [b"", b""]
    assert client.get(f"{prefix}a", range_end=f"{prefix}c", count_only=True) == []
    assert b"2" in [value for value, _ in client.get_all()]
    assert client.delete_prefix(prefix)
    assert client.get_prefix(prefix) == []


def test_old_revisions(client: Any, prefix: str) -> None:
    client.put(f"{prefix}k", "one")
    ((_, metadata),) = client.get(f"{prefix}k", metadata=True)
    client.put(f"{prefix}k", "two")

    assert client.get(f"{prefix}k", revision=int(metadata["mod_revision"])) == [b"one"]


def test_transactions(client: Any, prefix: str) -> None:
    assert client.create(f"{prefix}k", "one") is True
    assert client.create(f"{prefix}k", "two") is False
    assert client.replace(f"{prefix}k", "one", "three") is True
    assert client.replace(f"{prefix}k", "one", "four") is False
    assert client.get(f"{prefix}k") == [b"three"]


def test_leases(client: Any, prefix: str) -> None:
    lease = client.lease(ttl=600)
    client.put(f"{prefix}k", "v", lease=lease)

    assert lease.keys() == [f"{prefix}k".encode()]
    assert 590 <= lease.ttl() <= 600
    assert lease.refresh() == 600
    assert lease.revoke()
    assert client.get(f"{prefix}k") == []
    assert lease.ttl() == -1
    assert lease.refresh() == -1
    assert lease.keys() == []


def test_a_watch_shows_events_one_after_the_other(client: Any, prefix: str) -> None:
    """The client takes each chunk of HTTP as one document of JSON, so an answer must not be split."""
    events, cancel = client.watch_prefix(prefix, prev_kv=True)
    try:
        client.put(f"{prefix}a", "1")
        client.put(f"{prefix}a", "2")
        client.delete(f"{prefix}a")
        shown = list(islice(events, 3))
    finally:
        cancel()

    assert [event["kv"]["key"] for event in shown] == [f"{prefix}a".encode()] * 3
    assert [event["kv"].get("value") for event in shown] == [b"1", b"2", None]
    assert [event.get("type", "PUT") for event in shown] == ["PUT", "PUT", "DELETE"]
    assert int(shown[2]["kv"]["mod_revision"]) == int(shown[0]["kv"]["mod_revision"]) + 2


def test_a_watch_from_an_old_revision(client: Any, prefix: str) -> None:
    for value in ("1", "2", "3"):
        client.put(f"{prefix}k", value)
    ((_, metadata),) = client.get(f"{prefix}k", metadata=True)

    event = client.watch_once(f"{prefix}k", timeout=20, start_revision=int(metadata["mod_revision"]) - 1)

    assert event["kv"]["value"] == b"2"


def test_a_watch_of_large_values(client: Any, prefix: str) -> None:
    """One answer is much larger than a buffer of the client."""
    value = bytes(range(256)) * 2000
    client.put(f"{prefix}k", value)
    ((_, metadata),) = client.get(f"{prefix}k", metadata=True)

    event = client.watch_once(f"{prefix}k", timeout=20, start_revision=int(metadata["mod_revision"]))

    assert event["kv"]["value"] == value


def test_locks(client: Any, prefix: str) -> None:
    first, second = client.lock(f"{prefix}lock", ttl=60), client.lock(f"{prefix}lock", ttl=60)

    assert first.acquire() is True
    assert second.acquire() is False
    assert first.is_acquired()
    assert not second.is_acquired()
    assert first.refresh() == 60
    assert second.release() is False
    assert first.release() is True
    with second:
        assert second.is_acquired()
    assert not second.is_acquired()


def test_errors(client: Any, prefix: str) -> None:
    """The client keeps the whole body of an error as a text."""
    with pytest.raises(etcd3gw.exceptions.Etcd3Exception) as raised:
        client.put("", "v")
    assert '"message":"etcdserver: key is not provided"' in raised.value.detail_text
    assert raised.value.args == ("Bad Request",)


def test_members_and_status(client: Any) -> None:
    members = client.members()

    assert len(members) == 3
    assert client.status()["leader"] in [member["ID"] for member in members]

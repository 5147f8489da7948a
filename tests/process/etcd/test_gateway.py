"""The JSON gateway over HTTP/1.1, asked with http.client: statuses, shapes, errors and streams.

JSON follows protobuf's rules as etcd 3.5 has them: a 64-bit number is a text, bytes are base64, names are as in the
.proto files, and a field that is 0, false or empty is left out. Requests may also have numbers as numbers, and names in
camel case.
"""

from __future__ import annotations

import http.client
import json
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pytest

from tests.process.etcd.members import USES_REAL_ETCD

pytestmark = [pytest.mark.process, pytest.mark.timeout(100)]

SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the gateway."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, from JSON."""
        return json.loads(self.body)


class Gateway:
    """A connection to a member. All requests of a test use it, so it must stay open."""

    def __init__(self, endpoint: str) -> None:
        self._connection = http.client.HTTPConnection(endpoint, timeout=SECONDS)

    def send(self, method: str, path: str, body: str | None = None, **headers: str) -> Answer:
        """Send a request, and read the answer to its end."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request(method, path, body, sent)
        response = self._connection.getresponse()
        names = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, names, response.read())

    def __call__(self, path: str, **request: Any) -> Any:
        """The answer to a request that must succeed."""
        answer = self.send("POST", f"/v3/{path}", json.dumps(request))
        assert answer.status == 200, answer
        return answer.json

    def error(self, path: str, **request: Any) -> tuple[int, int, str]:
        """The status, the code of gRPC and the text of a request that must fail."""
        answer = self.send("POST", f"/v3/{path}", json.dumps(request))
        return error_of(answer)

    def stream(self, path: str, **request: Any) -> Iterator[Any]:
        """The answers of a stream, each a line of JSON. Afterwards, the connection cannot be used for requests."""
        self._connection.request("POST", f"/v3/{path}", json.dumps(request))
        response = self._connection.getresponse()
        assert response.status == 200
        assert response.getheader("Transfer-Encoding") == "chunked"
        while line := response.readline():
            yield json.loads(line)

    def first(self, count: int, path: str, **request: Any) -> list[Any]:
        """The first results of a stream."""
        return [answer["result"] for answer in islice(self.stream(path, **request), count)]

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def error_of(answer: Answer) -> tuple[int, int, str]:
    assert answer.headers["content-type"] == "application/json"
    body = answer.json
    assert body.keys() == {"error", "code", "message"}
    assert body["error"] == body["message"]
    return answer.status, body["code"], body["error"]


@pytest.fixture
def gateway(etcd_endpoint: str) -> Iterator[Gateway]:
    gateway = Gateway(etcd_endpoint)
    yield gateway
    gateway.close()


def encoded(text: str) -> str:
    return b64encode(text.encode()).decode()


def test_the_version(gateway: Gateway) -> None:
    """Clients choose the path of the gateway by it."""
    answer = gateway.send("GET", "/version")

    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json.keys() == {"etcdserver", "etcdcluster"}
    assert tuple(map(int, answer.json["etcdserver"].split("."))) >= (3, 4, 0)


@pytest.mark.parametrize("path", ["/health", "/health?serializable=true"])
def test_health(gateway: Gateway, path: str) -> None:
    answer = gateway.send("GET", path)

    assert answer.status == 200
    assert answer.json == {"health": "true", "reason": ""}


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("POST", "/health", 405, b"Method Not Allowed\n"),
        ("POST", "/version", 405, b"Method Not Allowed\n"),
        ("GET", "/v3/kv/range", 405, b"Method Not Allowed\n"),
        ("PUT", "/v3/kv/put", 405, b"Method Not Allowed\n"),
        ("POST", "/v3/no/such/method", 404, b"Not Found\n"),
        ("GET", "/", 404, b"404 page not found\n"),
        ("GET", "/v2/keys", 404, b"404 page not found\n"),
    ],
)
def test_paths_that_are_not_there(gateway: Gateway, method: str, path: str, status: int, text: bytes) -> None:
    answer = gateway.send(method, path, "{}" if method != "GET" else None)

    assert (answer.status, answer.body) == (status, text)
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"


@pytest.mark.skipif(not USES_REAL_ETCD, reason="our members answer no web page of another origin")
def test_a_browser_may_ask(gateway: Gateway) -> None:
    """Every answer permits any origin."""
    asked = gateway.send("OPTIONS", "/v3/kv/put")

    assert (asked.status, asked.body) == (200, b"")
    for answer in (asked, gateway.send("GET", "/version"), gateway.send("POST", "/v3/kv/range", "{}")):
        assert answer.headers["access-control-allow-origin"] == "*"
        assert answer.headers["access-control-allow-methods"] == "POST, GET, OPTIONS, PUT, DELETE"
        assert answer.headers["access-control-allow-headers"] == "accept, content-type, authorization"


def test_a_put_and_a_range(gateway: Gateway, prefix: str) -> None:
    key = encoded(f"{prefix}k")
    put = gateway.send("POST", "/v3/kv/put", json.dumps({"key": key, "value": encoded("one")}))
    assert (put.status, put.headers["content-type"]) == (200, "application/json")
    assert put.headers["grpc-metadata-content-type"] == "application/grpc"
    header = put.json["header"]
    assert put.json.keys() == {"header"}
    assert list(header) == ["cluster_id", "member_id", "revision", "raft_term"]
    assert all(isinstance(value, str) and int(value) > 0 for value in header.values())

    found = gateway("kv/range", key=key)
    revision = header["revision"]
    assert found == {
        "header": header,
        "kvs": [
            {
                "key": key, "create_revision": revision, "mod_revision": revision, "version": "1",
                "value": encoded("one"),
            }
        ],
        "count": "1",
    }  # fmt: skip
    again = gateway("kv/put", key=key, value=encoded("two"), prev_kv=True)
    assert again["prev_kv"] == found["kvs"][0]


def test_what_is_zero_is_left_out(gateway: Gateway, prefix: str) -> None:
    key = encoded(f"{prefix}k")

    assert gateway("kv/range", key=key).keys() == {"header"}
    assert gateway("kv/deleterange", key=key).keys() == {"header"}
    gateway("kv/put", key=key)
    (found,) = gateway("kv/range", key=key)["kvs"]
    assert found.keys() == {"key", "create_revision", "mod_revision", "version"}


def test_numbers_and_names_have_two_forms(gateway: Gateway, prefix: str) -> None:
    for name, value in (("a", "x"), ("b", "z"), ("c", "y")):
        gateway("kv/put", key=encoded(prefix + name), value=encoded(value))
    key, end = encoded(prefix), encoded(f"{prefix}~")

    def keys(**request: Any) -> str:
        found = gateway("kv/range", key=key, **request)
        return "".join(b64decode(each["key"]).decode().removeprefix(prefix) for each in found.get("kvs", []))

    assert keys(range_end=end, sort_order="DESCEND", sort_target="VALUE", limit="2") == "bc"
    assert keys(rangeEnd=end, sortOrder=2, sortTarget=4, limit=2) == "bc"
    assert keys(range_end=end, sort_order=0, sort_target=0) == "abc"
    assert gateway("kv/range", key=key, range_end=end, limit=1)["more"] is True
    assert "value" not in gateway("kv/range", key=key, range_end=end, keys_only=True)["kvs"][0]
    assert gateway("kv/range", key=key, range_end=end, count_only=True).keys() == {"header", "count"}


def test_unknown_names_are_ignored(gateway: Gateway, prefix: str) -> None:
    assert gateway("kv/range", key=encoded(prefix), no_such_option=1).keys() == {"header"}


def test_a_type_of_the_body_is_not_needed(gateway: Gateway, prefix: str) -> None:
    body = json.dumps({"key": encoded(f"{prefix}k")})

    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/json; charset=utf-8"):
        assert gateway.send("POST", "/v3/kv/put", body, Content_Type=kind).status == 200


def test_a_deletion(gateway: Gateway, prefix: str) -> None:
    for name in "ab":
        gateway("kv/put", key=encoded(prefix + name), value=encoded(name))

    deleted = gateway("kv/deleterange", key=encoded(prefix), range_end=encoded(f"{prefix}~"), prev_kv=True)

    assert deleted["deleted"] == "2"
    assert [each["value"] for each in deleted["prev_kvs"]] == [encoded("a"), encoded("b")]


def test_a_transaction(gateway: Gateway, prefix: str) -> None:
    """A comparison with 0 holds for a key that is not there. The failed branch has no `succeeded`."""
    a, b, c = (encoded(prefix + name) for name in "abc")
    absent = {"key": a, "result": "EQUAL", "target": "CREATE", "create_revision": 0}
    request: dict[str, Any] = {
        "compare": [absent],
        "success": [
            {"request_put": {"key": a, "value": encoded("v")}},
            {"requestRange": {"key": a}},
            {"request_delete_range": {"key": b}},
            {"request_txn": {"success": [{"request_put": {"key": c}}]}},
        ],
        "failure": [{"request_range": {"key": a}}],
    }

    done = gateway("kv/txn", **request)
    failed = gateway("kv/txn", **request)

    revision = done["header"]["revision"]
    part = {"header": {"revision": revision}}
    kv = {"key": a, "create_revision": revision, "mod_revision": revision, "version": "1", "value": encoded("v")}
    assert done["succeeded"] is True
    assert done["responses"] == [
        {"response_put": part},
        {"response_range": {**part, "kvs": [kv], "count": "1"}},
        {"response_delete_range": part},
        {"response_txn": {"header": {}, "succeeded": True, "responses": [{"response_put": part}]}},
    ]
    assert failed.keys() == {"header", "responses"}
    assert failed["responses"][0]["response_range"]["kvs"] == [kv]
    assert gateway("kv/txn", compare=[absent]).keys() == {"header"}
    assert gateway("kv/txn")["succeeded"] is True


INVALID, NOT_FOUND, FAILED_PRECONDITION, OUT_OF_RANGE, UNKNOWN = 3, 5, 9, 11, 2


@pytest.mark.parametrize(
    ("path", "request_fields", "status", "code", "text"),
    [
        ("kv/range", {}, 400, INVALID, "etcdserver: key is not provided"),
        ("kv/put", {"value": "eA=="}, 400, INVALID, "etcdserver: key is not provided"),
        ("kv/deleterange", {}, 400, INVALID, "etcdserver: key is not provided"),
        ("kv/range", {"key": "eA==", "revision": str(1 << 62)}, 400, OUT_OF_RANGE,
         "etcdserver: mvcc: required revision is a future revision"),
        ("kv/compaction", {"revision": str(1 << 62)}, 400, OUT_OF_RANGE,
         "etcdserver: mvcc: required revision is a future revision"),
        ("kv/put", {"key": "eA==", "lease": "12345"}, 404, NOT_FOUND, "etcdserver: requested lease not found"),
        ("lease/revoke", {"ID": 12345}, 404, NOT_FOUND, "etcdserver: requested lease not found"),
        ("kv/lease/revoke", {"ID": "12345"}, 404, NOT_FOUND, "etcdserver: requested lease not found"),
        ("lease/grant", {"TTL": 9_000_000_001}, 400, OUT_OF_RANGE, "etcdserver: too large lease TTL"),
        ("kv/txn", {"success": [{"request_put": {"key": "eA=="}}] * 2}, 400, INVALID,
         "etcdserver: duplicate key given in txn request"),
        ("kv/txn", {"success": [{"request_range": {"key": "eA=="}}] * 129}, 400, INVALID,
         "etcdserver: too many operations in txn request"),
        ("kv/txn", {"success": [{}]}, 400, INVALID, "etcdserver: key not found"),
        ("auth/authenticate", {"name": "u", "password": "p"}, 400, FAILED_PRECONDITION,
         "etcdserver: authentication is not enabled"),
        ("auth/user/get", {"name": "nobody"}, 400, FAILED_PRECONDITION, "etcdserver: user name not found"),
        ("auth/enable", {}, 400, FAILED_PRECONDITION, "etcdserver: root user does not exist"),
        ("lock/lock", {"name": "eA==", "lease": "12345"}, 500, UNKNOWN, "etcdserver: requested lease not found"),
        ("election/leader", {"name": "eA=="}, 500, UNKNOWN, "election: no leader"),
    ],
)  # fmt: skip
def test_errors(
    gateway: Gateway, path: str, request_fields: Mapping[str, Any], status: int, code: int, text: str
) -> None:
    assert gateway.error(path, **request_fields) == (status, code, text)


@pytest.mark.parametrize(
    "body",
    ["{bad", "[]", '{"key": "!!"}', '{"key": "eA==", "limit": "abc"}', '{"key": "eA==", "sort_order": "SIDEWAYS"}'],
)
def test_a_body_that_cannot_be_read(gateway: Gateway, body: str) -> None:
    """The words are those of the library that reads JSON; a client can rely on the status and the code."""
    status, code, text = error_of(gateway.send("POST", "/v3/kv/range", body))

    assert (status, code) == (400, INVALID)
    assert text


def test_an_empty_body_is_an_empty_request(gateway: Gateway) -> None:
    assert error_of(gateway.send("POST", "/v3/kv/range", "")) == (400, INVALID, "etcdserver: key is not provided")
    assert "members" in gateway.send("POST", "/v3/cluster/member/list", "").json


def test_the_connection_outlives_errors(gateway: Gateway, prefix: str) -> None:
    gateway.error("kv/range")
    gateway.send("GET", "/nothing")
    gateway.send("POST", "/v3/kv/range", "{bad")

    assert gateway("kv/put", key=encoded(f"{prefix}k"))["header"]


def test_a_deadline(gateway: Gateway) -> None:
    body = json.dumps({"key": encoded("k")})

    late = gateway.send("POST", "/v3/kv/put", body, Grpc_Timeout="1n")
    bad = gateway.send("POST", "/v3/kv/range", body, Grpc_Timeout="bad")

    assert error_of(late) == (504, 4, "context deadline exceeded")
    assert error_of(bad) == (400, INVALID, "invalid grpc-timeout: bad")


def test_compaction(own_endpoints: list[str]) -> None:
    gateway = Gateway(own_endpoints[0])
    compacted = (400, OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted")
    try:
        revisions = [int(gateway("kv/put", key=encoded("k"))["header"]["revision"]) for _ in range(3)]
        assert gateway("kv/compaction", revision=revisions[1], physical=True).keys() == {"header"}
        assert gateway.error("kv/compaction", revision=revisions[1]) == compacted
        assert gateway.error("kv/range", key=encoded("k"), revision=revisions[0]) == compacted
        created, cancelled = gateway.first(
            2, "watch", create_request={"key": encoded("k"), "start_revision": revisions[0]}
        )
    finally:
        gateway.close()
    assert created["created"] is True
    assert (cancelled["canceled"], cancelled["compact_revision"]) == (True, str(revisions[1]))


def test_leases(gateway: Gateway, prefix: str) -> None:
    """Each method has two paths. The lease that is not there has no time to live in an answer to keep-alive."""
    granted = gateway("lease/grant", TTL="600", ID=0)
    lease = granted["ID"]
    assert granted.keys() == {"header", "ID", "TTL"}
    assert granted["TTL"] == "600"
    gateway("kv/put", key=encoded(f"{prefix}k"), lease=lease)
    for path in ("lease/timetolive", "kv/lease/timetolive"):
        told = gateway(path, ID=lease, keys=True)
        assert (told["ID"], told["grantedTTL"], told["keys"]) == (lease, "600", [encoded(f"{prefix}k")])
        assert 590 <= int(told["TTL"]) <= 600
    for path in ("lease/leases", "kv/lease/leases"):
        assert {"ID": lease} in gateway(path)["leases"]
    (kept,) = gateway.stream("lease/keepalive", ID=lease)
    assert (kept["result"]["ID"], kept["result"]["TTL"]) == (lease, "600")
    (missing,) = gateway.stream("lease/keepalive", ID="12345")
    assert missing["result"].keys() == {"header", "ID"}
    assert gateway("lease/timetolive", ID="12345")["TTL"] == "-1"
    assert gateway.error("lease/grant", TTL=60, ID=lease) == (400, 9, "etcdserver: lease already exists")
    assert gateway("kv/lease/revoke", ID=lease).keys() == {"header"}
    assert gateway("kv/range", key=encoded(f"{prefix}k")).keys() == {"header"}


def test_a_watch_is_a_stream_of_lines(gateway: Gateway, etcd_endpoint: str, prefix: str) -> None:
    """The stream ends with the connection."""
    writer = Gateway(etcd_endpoint)
    key = encoded(f"{prefix}k")
    try:
        watch = gateway.stream("watch", create_request={"key": key, "prev_kv": True})
        created = next(watch)["result"]
        assert created.keys() == {"header", "created"}
        first = writer("kv/put", key=key, value=encoded("one"))["header"]["revision"]
        event = next(watch)["result"]["events"][0]
        writer("kv/deleterange", key=key)
        deletion = next(watch)["result"]["events"][0]
    finally:
        writer.close()

    kv = {"key": key, "create_revision": first, "mod_revision": first, "version": "1", "value": encoded("one")}
    assert event == {"kv": kv}
    assert deletion == {"type": "DELETE", "kv": {"key": key, "mod_revision": str(int(first) + 1)}, "prev_kv": kv}


def test_a_watch_with_options_in_camel_case(gateway: Gateway, prefix: str) -> None:
    key = encoded(f"{prefix}k")
    revision = gateway("kv/put", key=key)["header"]["revision"]
    gateway("kv/deleterange", key=key)
    request = {"key": key, "startRevision": revision, "filters": ["NOPUT"], "watchId": "7"}

    created, shown = gateway.first(2, "watch", createRequest=request)

    assert created["watch_id"] == "7"
    assert [each["type"] for each in shown["events"]] == ["DELETE"]


def test_members_and_maintenance(gateway: Gateway) -> None:
    listed = gateway("cluster/member/list")
    status = gateway("maintenance/status")

    assert [each.keys() for each in listed["members"]] == [{"ID", "name", "peerURLs", "clientURLs"}] * 3
    ids = {each["ID"] for each in listed["members"]}
    assert {status["leader"], status["header"]["member_id"]} <= ids
    assert {"version", "dbSize", "leader", "raftIndex", "raftTerm", "raftAppliedIndex"} <= status.keys()
    assert gateway("maintenance/alarm", action="GET").keys() == {"header"}
    assert isinstance(gateway("maintenance/hash")["hash"], int), "a 32-bit number is a number"
    assert gateway("auth/status").get("enabled", False) is False


def test_a_lock(gateway: Gateway, prefix: str) -> None:
    lease = gateway("lease/grant", TTL=600)["ID"]

    held = gateway("lock/lock", name=encoded(f"{prefix}lock"), lease=lease)

    assert b64decode(held["key"]).decode() == f"{prefix}lock/{int(lease):x}"
    assert gateway("lock/unlock", key=held["key"]).keys() == {"header"}
    assert gateway("kv/range", key=held["key"]).keys() == {"header"}


def test_an_election(gateway: Gateway, prefix: str) -> None:
    lease = gateway("lease/grant", TTL=600)["ID"]
    name = encoded(f"{prefix}election")

    leader = gateway("election/campaign", name=name, lease=lease, value=encoded("ann"))["leader"]

    assert leader.keys() == {"name", "key", "rev", "lease"}
    assert gateway("election/leader", name=name)["kv"]["value"] == encoded("ann")
    gateway("election/proclaim", leader=leader, value=encoded("bob"))
    (observed,) = gateway.first(1, "election/observe", name=name)
    assert observed["kv"]["value"] == encoded("bob")


def test_users(own_endpoints: list[str]) -> None:
    """The token of a login is sent as the header Authorization, without a scheme."""
    gateway = Gateway(own_endpoints[0])
    key = encoded("k")
    try:
        gateway("auth/user/add", name="root", password="pw")
        gateway("auth/user/add", name="ann", password="secret")
        gateway("auth/role/add", name="root")
        gateway("auth/role/add", name="few")
        gateway("auth/role/grant", name="few", perm={"permType": "READ", "key": key})
        gateway("auth/user/grant", user="root", role="root")
        gateway("auth/user/grant", user="ann", role="few")
        assert gateway("auth/role/get", role="few")["perm"] == [{"key": key}], "READ is 0, and so left out"
        gateway("auth/enable")

        assert gateway.error("kv/range", key=key) == (400, INVALID, "etcdserver: user name is empty")
        assert gateway.error("auth/authenticate", name="ann", password="wrong") == (
            400, INVALID, "etcdserver: authentication failed, invalid user ID or password",
        )  # fmt: skip
        token = gateway("auth/authenticate", name="ann", password="secret")["token"]
        body = json.dumps({"key": key})
        assert gateway.send("POST", "/v3/kv/range", body, Authorization=token).status == 200
        assert error_of(gateway.send("POST", "/v3/kv/put", body, Authorization=token)) == (
            403, 7, "etcdserver: permission denied",
        )  # fmt: skip
        assert error_of(gateway.send("POST", "/v3/kv/put", body, Authorization="no.1")) == (
            401, 16, "etcdserver: invalid auth token",
        )  # fmt: skip
    finally:
        gateway.close()

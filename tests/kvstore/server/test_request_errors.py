"""A request that triggers a bug of this program loses its connection, and no other client is affected."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
import trio

import kvstore.server.request_judge
import kvstore.server.service
from kvstore import InternalError, open_node
from kvstore.protocol.commands import Delete, Get, Put, Range
from kvstore.protocol.messages import (
    Code,
    Consistency,
    command_request,
    decode_response,
    encode_client_hello,
    encode_request,
    read_request,
    request_id_of,
)
from kvstore.protocol.validation import admit_body
from kvstore.server.request_errors import PLACES_MAX, TRACEBACK_CHARACTERS_MAX, RequestErrors, is_contained
from raft import Refusal, decode_hello, encode_item, frame
from tests.kvstore.server.test_service import RawClient
from tests.kvstore.support.in_memory_cluster import Cluster

TRIPWIRE = b"tripwire"
"""If a request reads this key, the patched judge of these tests raises an error."""

TRIPPING = encode_request(7, read_request(Range(TRIPWIRE), Consistency.LOCAL))
HONEST = encode_request(8, read_request(Get(b"k"), Consistency.LOCAL))


class PanicException(BaseException):
    """A stand-in for a panic of the decoder's Rust code."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, 1)
    cluster.leader()
    yield cluster
    for host in cluster.hosts.values():
        host.kill()


def lay_tripwire(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """From now on, a read of TRIPWIRE raises `error` while the request is judged."""

    def trips(body: object, *arguments: object) -> None:
        if isinstance(body, list | tuple) and len(body) > 1 and body[1] == TRIPWIRE:
            raise error
        admit_body(body, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(kvstore.server.request_judge, "admit_body", trips)


def raises(error: BaseException) -> Callable[..., NoReturn]:
    def act(*_: object, **__: object) -> NoReturn:
        raise error

    return act


@pytest.mark.parametrize("consistency", [{}, [], [1], True, False, None, "linearizable", b"\x01", 0, 6, -1, 2**62])
def test_a_consistency_of_any_type_is_answered(cluster: Cluster, consistency: object) -> None:
    """The types include unhashable ones. A boolean is not a number here, so `True` is not read as `linearizable`."""
    client = RawClient(cluster)

    response = client.ask(encode_item([1, 3, consistency, [2, b"k"]]))

    assert response.code == Code.UNSUPPORTED
    assert client.ask(encode_request(2, read_request(Get(b"k"), Consistency.LINEARIZABLE))).code == Code.OK
    assert client.service.request_errors.total == 0


@pytest.mark.parametrize("error", [TypeError("unhashable"), AssertionError(), MemoryError(), PanicException("rust")])
def test_an_unexpected_error_costs_its_connection_only(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    """The answer has the request's id and says that the request was not carried out. Requests after this one are
    ignored."""
    lay_tripwire(monkeypatch, error)
    bad, good = RawClient(cluster, 1), RawClient(cluster, 2)
    last_index = cluster.hosts["s1"].node.core.last_index

    bad.send(frame(TRIPPING) + frame(encode_request(9, command_request(Put(b"k", b"v")))))

    (body,) = bad.bodies
    response = decode_response(body)
    assert (response.request_id, response.code) == (7, Code.INTERNAL_ERROR)
    assert type(error).__name__ in response.fields[0]
    assert bad.is_closed
    assert good.ask(HONEST).code == Code.OK
    assert good.service.request_errors.total == 1
    assert cluster.hosts["s1"].node.core.last_index == last_index
    assert ("no more memory" if isinstance(error, MemoryError) else "in trips") in caplog.text


def test_what_came_before_the_error_is_carried_out_and_answered(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A put that was already proposed is carried out, and the connection gets both answers."""
    lay_tripwire(monkeypatch, TypeError())
    client = RawClient(cluster)

    client.send(frame(encode_request(6, command_request(Put(b"k", b"v")))) + frame(TRIPPING))

    assert {decode_response(body).request_id for body in client.bodies} == {6, 7}
    assert cluster.hosts["s1"].machine.get(b"k").record is not None


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), trio.Cancelled._create(), OSError(5, "I/O")])
def test_what_ends_a_process_or_a_disk_is_not_contained(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """A request causes neither a signal nor a failing disk, so these errors end the member."""
    lay_tripwire(monkeypatch, error)
    client = RawClient(cluster)

    assert not is_contained(error)
    with pytest.raises(type(error)):
        client.send(frame(TRIPPING))


HONEST_ROUND = encode_request(9, read_request(Get(b"k"), Consistency.LINEARIZABLE))


@pytest.mark.parametrize(
    ("method", "body"),
    [
        pytest.param("propose_all", encode_request(1, command_request(Put(b"k", b"v"))), marks=pytest.mark.fast_path),
        ("propose", encode_request(1, command_request(Delete(b"k")))),
        ("read_all", HONEST_ROUND),
        ("propose_change", encode_item([1, 8, [], [], ["s2"], []])),
        ("transfer_leadership", encode_item([1, 6, None])),
    ],
)
def test_an_error_inside_the_node_ends_the_member(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, method: str, body: bytes
) -> None:
    """The node's state may be only partly changed, so the member must restart."""
    client = RawClient(cluster)
    monkeypatch.setattr(cluster.hosts["s1"].node, method, raises(AssertionError("inside the node")))

    with pytest.raises(AssertionError, match="inside the node"):
        client.send(frame(body))

    assert client.service.request_errors.total == 0


def test_an_error_while_completions_are_carried_out_ends_the_member(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A linearizable read is answered later, by code that does not catch the errors of requests."""
    client = RawClient(cluster)
    monkeypatch.setattr(cluster.hosts["s1"].machine, "read", raises(TypeError("in the store")))

    with pytest.raises(TypeError, match="in the store"):
        client.send(frame(HONEST_ROUND))


def test_an_error_while_a_hello_is_judged_refuses_the_stranger(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the error occurs before the greeting, the answer is a refusal."""
    monkeypatch.setattr(kvstore.server.request_judge, "check_client_hello", raises(TypeError()))
    stranger = RawClient(cluster, greets=False)

    stranger.send(frame(encode_client_hello()))

    refusal = decode_hello(stranger.bodies.pop())
    assert isinstance(refusal, Refusal)
    assert refusal.code == "internal"
    assert stranger.is_closed


@pytest.mark.parametrize("fast_path", ["parse_uniform_puts", "decode_joined", "parse_batch"])
@pytest.mark.fast_path
def test_an_error_of_a_fast_path_costs_nobody_anything(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, fast_path: str
) -> None:
    """After an error on the fast path, the general path judges the same requests one by one. The error is still
    counted."""
    monkeypatch.setattr(kvstore.server.service, fast_path, raises(TypeError()))
    client = RawClient(cluster)
    puts = [frame(encode_request(i, command_request(Put(b"k%d" % i, b"v")))) for i in range(1, 6)]

    client.send(b"".join(puts))

    assert sorted(decode_response(body).request_id for body in client.bodies) == [1, 2, 3, 4, 5]
    assert {decode_response(body).code for body in client.bodies} == {Code.OK}
    assert client.service.request_errors.total >= 1


def test_an_error_before_the_request_is_known_is_still_told_by_its_id(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the decoder itself fails, the id of the request is read without the decoder."""
    monkeypatch.setattr(kvstore.server.service, "decode_request", raises(PanicException()))
    client = RawClient(cluster)

    client.send(frame(encode_request(70_000, read_request(Range(), Consistency.LOCAL))))

    assert decode_response(client.bodies.pop()).request_id == 70_000


@pytest.mark.parametrize("request_id", [1, 23, 24, 255, 256, 65_535, 65_536, 2**32, 2**63 - 1])
def test_the_id_read_by_hand_is_the_id(request_id: int) -> None:
    """The test reads CBOR integers of all sizes. A request that begins with any other item has no id."""
    assert request_id_of(encode_item([request_id, 1])) == request_id


@pytest.mark.parametrize("body", [b"", b"\x82", b"\x01\x01", b"\xff\xff\xff", encode_item(["text", 1])])
def test_a_frame_without_an_id_has_id_0(body: bytes) -> None:
    assert request_id_of(body) == 0


def test_a_flood_of_errors_is_logged_at_powers_of_ten(caplog: pytest.LogCaptureFixture) -> None:
    """Each place in the code gets one traceback, and then a line at 10, 100 and 1,000 errors."""
    errors = RequestErrors()
    for _ in range(1_234):
        try:
            raise TypeError("x" * 100_000)
        except TypeError as error:
            errors.record(error)

    assert errors.total == 1_234
    assert len(caplog.records) == 4
    assert all(len(record.getMessage()) <= TRACEBACK_CHARACTERS_MAX + 300 for record in caplog.records)
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 4


def test_the_places_that_are_told_apart_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """All places beyond a maximum count as one place."""
    errors = RequestErrors()
    for number in range(3 * PLACES_MAX):
        kind = type(f"Error{number}", (Exception,), {})
        errors.record(kind())

    assert errors.total == 3 * PLACES_MAX
    assert len(errors.places) == PLACES_MAX + 1
    assert len(caplog.records) <= PLACES_MAX + 4


def test_a_client_is_told_at_once_and_carries_it_to_no_other_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request would fail at every member. So the client sends it to only one of the three members, and continues
    with the next operation."""
    lay_tripwire(monkeypatch, TypeError())
    cluster = Cluster(tmp_path, 3)
    cluster.leader()
    client = cluster.client()
    client.do(Put(b"k", b"v"))

    for consistency in (Consistency.LINEARIZABLE, Consistency.LOCAL):
        with pytest.raises(InternalError, match="certainly not carried out") as caught:
            client.do(Range(TRIPWIRE), consistency=consistency)
        assert "report it" in caught.value.hint

    assert sum(host.service.request_errors.total for host in cluster.hosts.values()) == 2
    client.do(Put(b"k", b"w"))
    for host in cluster.hosts.values():
        host.kill()


@pytest.mark.timeout(30)
async def test_a_program_with_a_member_inside_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in a request does not end the member, no matter whether the program itself or another program sent the
    request."""
    lay_tripwire(monkeypatch, TypeError())
    async with open_node(tmp_path / "data", bootstrap=True) as store:
        await store.put("k", "v")
        with pytest.raises(InternalError):
            await store.range(Range(TRIPWIRE))
        found = await store.get("k")
        assert found.record is not None

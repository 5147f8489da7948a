"""Arguments of a wrong type or value, in each world: the error has the same type and the same words. Nothing is left
behind: the client goes on, and nothing has to be closed."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kvstore import (
    InvalidRequest,
    LimitsRefused,
    Put,
    Range,
    RevisionCompacted,
    TransactionConflict,
    Unavailable,
    Unsupported,
)
from tests.kvstore.worlds.world import in_each_world, settled

pytestmark = [pytest.mark.timeout(60)]


async def nothing(_: object) -> None:
    """Work that does nothing."""


async def first_of(listing: Any) -> Any:
    """The first item of a listing."""
    return await anext(listing)


async def entered(make: Callable[[], Any]) -> None:
    """Enter a block."""
    async with make():
        pass


A_TEXT: Any = "1"

WRONG: dict[str, tuple[Callable[[Any], Awaitable[Any]], type[Exception], str]] = {
    "put key none": (lambda store: store.put(None, "1"), TypeError, "keys and values are bytes or text, not NoneType"),
    "put key number": (lambda store: store.put(5, "1"), TypeError, "keys and values are bytes or text, not int"),
    "put value number": (lambda store: store.put("a", 5), TypeError, "keys and values are bytes or text, not int"),
    "put value list": (lambda store: store.put("a", ["1"]), TypeError, "keys and values are bytes or text, not list"),
    "put lease text": (
        lambda store: store.put("a", "1", lease="7"),
        InvalidRequest,
        "invalid request: Put: lease_id is a number, such as lease.id, and not '7' (str)",
    ),
    "put lease negative": (
        lambda store: store.put("a", "1", lease=-1),
        InvalidRequest,
        "invalid request: a number in it is out of its range",
    ),
    "put acknowledge text": (
        lambda store: store.put("a", "1", acknowledge="leader"),
        TypeError,
        "acknowledge is an Acknowledge, such as Acknowledge.LEADER, and not 'leader' (str)",
    ),
    "put deadline nan": (
        lambda store: store.put("a", "1", deadline_seconds=float("nan")),
        ValueError,
        "deadline_seconds is not a number",
    ),
    "put deadline text": (
        lambda store: store.put("a", "1", deadline_seconds="5"),
        TypeError,
        "deadline_seconds is a number of seconds, such as 10 or 0.5, and not '5'",
    ),
    "put key long": (
        lambda store: store.put("k" * 5_000, "1"),
        InvalidRequest,
        "invalid request: a key is too long (5000; the bound is 1024)",
    ),
    "put many atomic empty key": (
        lambda store: store.put_many([("", "1")], atomic=True),
        InvalidRequest,
        "invalid request: a key needs at least one byte",
    ),
    "get many number key": (lambda store: store.get_many([5]), TypeError, "keys and values are bytes or text, not int"),
    "get key number": (lambda store: store.get(5), TypeError, "keys and values are bytes or text, not int"),
    "get consistency unknown": (
        lambda store: store.get("a", consistency="eventual"),
        Unsupported,
        "not supported by this member: consistency 'eventual'; there are linearizable, lease, local, follower, bounded",
    ),
    "get staleness without bound": (
        lambda store: store.get("a", consistency="bounded"),
        ValueError,
        "a bounded read needs max_staleness_ms",
    ),
    "get staleness negative": (
        lambda store: store.get("a", max_staleness_ms=-1),
        ValueError,
        "max_staleness_ms is 0 to 1000000000, not -1",
    ),
    "get staleness local": (
        lambda store: store.get("a", consistency="local", max_staleness_ms=5),
        ValueError,
        "max_staleness_ms is for bounded reads, not for local ones",
    ),
    "get revision negative": (
        lambda store: store.get("a", at_revision=-1),
        InvalidRequest,
        "invalid request: a number in it is out of its range",
    ),
    "get revision text": (
        lambda store: store.get("a", at_revision="1"),
        InvalidRequest,
        "invalid request: Get: revision is a number, such as 1, and not '1' (str)",
    ),
    "delete key none": (lambda store: store.delete(None), TypeError, "keys and values are bytes or text, not NoneType"),
    "delete key empty": (
        lambda store: store.delete(""),
        InvalidRequest,
        "invalid request: a key needs at least one byte",
    ),
    "delete range nothing": (
        lambda store: store.delete_range(),
        TypeError,
        "give a prefix, or a start and perhaps an end",
    ),
    "delete range both": (
        lambda store: store.delete_range("a", prefix="a"),
        TypeError,
        "give a prefix, or a start and perhaps an end",
    ),
    "append value none": (
        lambda store: store.append("a", None),
        TypeError,
        "keys and values are bytes or text, not NoneType",
    ),
    "add delta text": (
        lambda store: store.add("a", "1"),
        InvalidRequest,
        "invalid request: Add: delta is a number, such as 1, and not '1' (str)",
    ),
    "add delta large": (
        lambda store: store.add("a", 1 << 63),
        InvalidRequest,
        "invalid request: a number in it is out of its range",
    ),
    "add key empty": (lambda store: store.add(""), InvalidRequest, "invalid request: a key needs at least one byte"),
    "compare and set expected list": (
        lambda store: store.compare_and_set("a", "1", []),
        TypeError,
        "keys and values are bytes or text, not list",
    ),
    "compare and set key empty": (
        lambda store: store.compare_and_set("", "1", None),
        InvalidRequest,
        "invalid request: a key needs at least one byte",
    ),
    "compare and set revision negative": (
        lambda store: store.compare_and_set("a", "1", -1),
        InvalidRequest,
        "invalid request: a number in it is out of its range",
    ),
    "compare and delete expected none": (
        lambda store: store.compare_and_delete("a", None),
        TypeError,
        "keys and values are bytes or text, not NoneType",
    ),
    "compare and delete key empty": (
        lambda store: store.compare_and_delete("", "1"),
        InvalidRequest,
        "invalid request: a key needs at least one byte",
    ),
    "txn empty key": (
        lambda store: store.txn(success=[Put("", "1")]),
        InvalidRequest,
        "invalid request: a key needs at least one byte",
    ),
    "txn text": (
        lambda store: store.txn("a"),
        TypeError,
        "compares is a list of comparisons, such as [Compare('key', Target.VERSION, Comparison.EQUAL, 0)], and not 'a'",
    ),
    "range both": (
        lambda store: store.range(Range("a", "b"), prefix="a"),
        TypeError,
        "give a request or a prefix, not both",
    ),
    "range limit negative": (
        lambda store: store.range(Range("a", "b", -1)),
        InvalidRequest,
        "invalid request: a number in it is out of its range",
    ),
    "range limit text": (
        lambda store: store.range(Range("a", "b", A_TEXT)),
        InvalidRequest,
        "invalid request: Range: limit is a number, such as 1, and not '1' (str)",
    ),
    "range prefix number": (
        lambda store: store.range(prefix=5),
        TypeError,
        "keys and values are bytes or text, not int",
    ),
    "pages limit negative": (
        lambda store: first_of(store.pages(prefix="a", page_limit=-1)),
        InvalidRequest,
        "invalid request: a number in it is out of its range",
    ),
    "items prefix number": (
        lambda store: first_of(store.items(prefix=5)),
        TypeError,
        "keys and values are bytes or text, not int",
    ),
    "compact zero": (
        lambda store: store.compact(0),
        RevisionCompacted,
        "revision 0 is compacted: the oldest that can be read is 1. Start the listing again",
    ),
    "compact text": (
        lambda store: store.compact("1"),
        InvalidRequest,
        "invalid request: Compact: revision is a number, such as 1, and not '1' (str)",
    ),
    "transact attempts zero": (
        lambda store: store.transact(nothing, attempts_max=0),
        TransactionConflict,
        "the transaction was not carried out: its reads had changed at each of 0 attempts",
    ),
    "watch two": (
        lambda store: entered(lambda: store.watch("a", prefix="a")),
        TypeError,
        "watch a key, a prefix, or the keys from start to end: only one of these",
    ),
    "watch revision negative": (
        lambda store: entered(lambda: store.watch("a", from_revision=-1)),
        InvalidRequest,
        "invalid request: a number in it is out of its range",
    ),
    "watch initial from": (
        lambda store: entered(lambda: store.watch("a", from_revision=1, initial=True)),
        InvalidRequest,
        "invalid request: a number in it is out of its range",
    ),
    "watch only unknown": (
        lambda store: entered(lambda: store.watch("a", only="change")),
        ValueError,
        "only is 'put', 'delete' or None; with initial, not 'delete'",
    ),
    "watch window zero": (
        lambda store: entered(lambda: store.watch("a", window_bytes=0)),
        InvalidRequest,
        "invalid request: a number in it is out of its range",
    ),
    "watch key empty": (
        lambda store: entered(lambda: store.watch("")),
        InvalidRequest,
        "invalid request: a key needs at least one byte",
    ),
    "watch deadline zero": (
        lambda store: entered(lambda: store.watch("a", deadline_seconds=0)),
        Unavailable,
        "unavailable: deadline_seconds is 0, so nothing was sent",
    ),
    "lease ttl negative": (
        lambda store: entered(lambda: store.lease(-1)),
        InvalidRequest,
        "invalid request: ttl_seconds is -1, and a lease lives from 1.0 to 31,536,000.0 seconds",
    ),
    "lease grant id negative": (
        lambda store: store.lease_grant(10, lease_id=-1),
        InvalidRequest,
        "invalid request: a number in it is out of its range",
    ),
    "lease renew text": (
        lambda store: store.lease_renew("7"),
        InvalidRequest,
        "invalid request: it does not have the shape of any command (docs/reference/specification.md#82-commands)",
    ),
    "lease renew negative": (
        lambda store: store.lease_renew(-7),
        InvalidRequest,
        "invalid request: a number in it is out of its range",
    ),
    "lease revoke text": (
        lambda store: store.lease_revoke("7"),
        InvalidRequest,
        "invalid request: LeaseRevoke: lease_id is a number, such as lease.id, and not '7' (str)",
    ),
    "lock name empty": (
        lambda store: entered(lambda: store.lock("")),
        InvalidRequest,
        "invalid request: a key needs at least one byte",
    ),
    "lock name number": (
        lambda store: entered(lambda: store.lock(5)),
        TypeError,
        "keys and values are bytes or text, not int",
    ),
    "lock ttl text": (
        lambda store: entered(lambda: store.lock("a", ttl_seconds="10")),
        TypeError,
        "ttl_seconds is a number of seconds, such as 10 or 0.5, and not '10'",
    ),
    "election name number": (
        lambda store: entered(lambda: store.election(5)),
        TypeError,
        "keys and values are bytes or text, not int",
    ),
    "election ttl text": (
        lambda store: entered(lambda: store.election("a", ttl_seconds="10")),
        TypeError,
        "ttl_seconds is a number of seconds, such as 10 or 0.5, and not '10'",
    ),
    "consume group empty": (
        lambda store: entered(lambda: store.consume("a/", group="")),
        ValueError,
        "the name of a group has from 1 to 128 bytes and no slash, not b''",
    ),
    "consume only unknown": (
        lambda store: entered(lambda: store.consume("a/", group="g", only="change")),
        ValueError,
        "only is 'put', 'delete' or None",
    ),
    "consume window zero": (
        lambda store: entered(lambda: store.consume("a/", group="g", window_bytes=0)),
        InvalidRequest,
        "invalid request: a number in it is out of its range",
    ),
    "consume from negative": (
        lambda store: entered(lambda: store.consume("a/", group="g", from_revision=-1)),
        InvalidRequest,
        "invalid request: a number in it is out of its range",
    ),
    "consume shares zero": (
        lambda store: store.consume_shares("a/", nothing, group="g", shares=0),
        ValueError,
        "with this alphabet, keys split into 1 to 256 shares, not 0",
    ),
    "consumer group empty": (
        lambda store: store.consumer_group(""),
        ValueError,
        "the name of a group has from 1 to 128 bytes and no slash, not b''",
    ),
    "set limits text": (
        lambda store: store.set_limits(sessions_max="5"),
        LimitsRefused,
        "the limits are not changed: sessions_max must be from 1 to 9223372036854775807, not '5'",
    ),
    "set limits bool": (
        lambda store: store.set_limits(sessions_max=True),
        LimitsRefused,
        "the limits are not changed: sessions_max must be from 1 to 9223372036854775807, not True",
    ),
    "set limits zero": (
        lambda store: store.set_limits(sessions_max=0),
        LimitsRefused,
        "the limits are not changed: sessions_max must be from 1 to 9223372036854775807, not 0",
    ),
    "under number": (lambda store: settled(store.under(5)), TypeError, "keys and values are bytes or text, not int"),
}
WRONG |= {
    f"{call} acknowledge number": (
        function,
        TypeError,
        "acknowledge is an Acknowledge, such as Acknowledge.LEADER, and not 1 (int)",
    )
    for call, function in {
        "put many": lambda store: store.put_many([("a", "1")], acknowledge=1),
        "delete": lambda store: store.delete("a", acknowledge=1),
        "txn": lambda store: store.txn(success=[Put("a", "1")], acknowledge=1),
    }.items()
}
"""For each wrong argument: the call, and the error with its whole text."""


@in_each_world
@pytest.mark.parametrize("what", WRONG)
async def test_a_wrong_argument_has_one_error_and_leaves_nothing_behind(client: Any, name: str, what: str) -> None:
    call, kind, words = WRONG[what]
    with pytest.raises(Exception) as refused:
        await call(client)
    assert (type(refused.value), str(refused.value)) == (kind, words)
    del refused
    gc.collect(1)  # A warning of something that was not closed is an error.
    await client.put(name, "the client goes on")

"""The types that a type checker finds in the public API. mypy checks this file (`make lint`); nothing here runs.

If one of these types changes, the type checks of users may fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import assert_type

import kvstore.asyncio
import kvstore.blocking
from kvstore import (
    Accepted,
    Acknowledge,
    Answer,
    Client,
    Compare,
    CompareAndSetResult,
    Comparison,
    DeleteResult,
    EmbeddedStore,
    Get,
    GetResult,
    KeyRecord,
    LogPage,
    MemberStatus,
    OperationFailed,
    OutcomeUnknown,
    Put,
    PutResult,
    RangeResult,
    Record,
    Result,
    StoreError,
    Target,
    TxnResult,
    open_node,
)
from raft import Effects, Member, Node, NodeStatus
from spark_audit import Verdict, check_rows


async def values_of_a_client(client: Client) -> None:
    """A client accepts text and bytes. It returns records, and a record may be absent."""
    assert_type(await client.put("key", b"value"), PutResult)
    found = await client.get(b"key")
    assert_type(found, GetResult)
    assert_type(found.record, Record | None)
    assert_type(found.revision, int)
    if found.record is not None:
        assert_type(found.record.value, bytes)
        assert_type(found.record.mod_revision, int)
    assert_type(await client.delete("key"), DeleteResult)
    assert_type(await client.compare_and_set("key", "new", expected=None), CompareAndSetResult)
    assert_type(await client.compare_and_set("key", "new", expected=7), CompareAndSetResult)


async def many_at_once(client: Client) -> None:
    """Each item gets one outcome, in order: its result, or its own error."""
    assert_type(await client.put_many([("a", "1")]), list[PutResult | OperationFailed | OutcomeUnknown])
    assert_type(await client.get_many(["a"]), list[GetResult | OperationFailed | OutcomeUnknown])


async def a_client_of_asyncio(client: kvstore.asyncio.Client) -> None:
    """The calls of the asyncio client have the same types as those of the trio client."""
    assert_type(await client.put("key", b"value"), PutResult)
    assert_type(await client.put("key", b"value", acknowledge=Acknowledge.LEADER), Accepted)
    assert_type(client.under("prefix/"), kvstore.asyncio.Client)
    async with kvstore.asyncio.open_node("data") as store:
        assert_type(await store.get("key"), GetResult)


def a_client_of_threads(client: kvstore.blocking.Client) -> None:
    """The calls of the client for threads have the same types without `await`, including overloads."""
    assert_type(client.put("key", b"value"), PutResult)
    assert_type(client.put("key", b"value", acknowledge=Acknowledge.LEADER), Accepted)
    assert_type(client.get("key").value, bytes | None)
    assert_type(client.put_many([("a", "1")]), list[PutResult | OperationFailed | OutcomeUnknown])
    assert_type(client.transact(lambda tx: len(tx.range("prefix/"))), int)
    assert_type(client.under("prefix/"), kvstore.blocking.Client)
    for item in client.items(prefix="users/"):
        assert_type(item, KeyRecord)
    with client.lock("name") as lock:
        assert_type(lock.fence, int)
        assert_type(lock.guarded().put("key", "value").commit(), TxnResult)
    with kvstore.blocking.open_node("data") as store:
        assert_type(store.node_id, str)
    assert_type(client.typed(str, int).get("number").value, int | None)


async def listings(client: Client) -> None:
    """A range can be read page by page, or record by record."""
    assert_type(await client.range(prefix="users/"), RangeResult)
    async for page in client.pages(prefix="users/"):
        assert_type(page, RangeResult)
    async for item in client.items(prefix="users/"):
        assert_type(item, KeyRecord)


async def transactions(client: Client) -> None:
    """A transaction has comparisons, and operations for success and for failure."""
    compares = [Compare(b"key", Target.VALUE, Comparison.EQUAL, b"value")]
    assert_type(await client.txn(compares, success=[Put(b"key", b"new")], failure=[Get(b"key")]), TxnResult)
    assert_type(await client.execute(Get(b"key")), Answer[Result])


async def the_cluster(client: Client) -> None:
    """These calls are for operators."""
    assert_type(await client.status(), MemberStatus)
    assert_type(await client.cluster_status(), dict[str, MemberStatus | StoreError])
    assert_type(await client.transfer_leadership(), str)
    assert_type(await client.read_log(1), LogPage)


async def an_embedded_member(folder: Path, members: Sequence[Member]) -> None:
    """A program can use an embedded member in the same way as a client."""
    async with open_node(folder, node_id="s1", members=members, bootstrap=True) as store:
        assert_type(store, EmbeddedStore)
        assert_type(store.node_id, str)
        assert_type(await store.put("key", "value"), PutResult)
    async with Client(["127.0.0.1:7001"]) as client:
        assert_type(client, Client)


def a_node_of_the_engine(node: Node) -> None:
    """The engine does no I/O: it takes events and returns effects."""
    assert_type(node.take_effects(), Effects)
    assert_type(node.status(), NodeStatus)


def an_audit(rows: list[dict[str, object]]) -> None:
    """The audit reads rows of a recorded history, and gives a verdict."""
    assert_type(check_rows(rows), Verdict)

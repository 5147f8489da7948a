"""Ranges, puts, deletions, transactions and compaction, as etcd's clients see them."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from kvstore.etcd.errors import Status
from kvstore.etcd.schema import Message, make
from kvstore.etcd.transaction_size import operations_in
from tests.kvstore.etcd.grpc_client import CallFailed
from tests.kvstore.etcd.member import Etcd, serving


def op_put(key: bytes, value: bytes = b"", **fields: Any) -> Message:
    return make("RequestOp", request_put=make("PutRequest", key=key, value=value, **fields))


def op_range(key: bytes, range_end: bytes = b"", **fields: Any) -> Message:
    return make("RequestOp", request_range=make("RangeRequest", key=key, range_end=range_end, **fields))


def op_delete(key: bytes, range_end: bytes = b"", **fields: Any) -> Message:
    request = make("DeleteRangeRequest", key=key, range_end=range_end, **fields)
    return make("RequestOp", request_delete_range=request)


def op_txn(**fields: Any) -> Message:
    return make("RequestOp", request_txn=make("TxnRequest", **fields))


async def keys_of(etcd: Etcd, key: bytes, range_end: bytes = b"", **fields: Any) -> list[bytes]:
    return [each.key for each in (await etcd.range(key, range_end, **fields)).kvs]


async def test_a_put_is_read_with_its_revisions_and_the_header_of_the_member(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        first = await etcd.put(b"a", b"1")
        again = await etcd.put(b"a", b"2", prev_kv=True)
        assert (first.header.revision, again.header.revision) == (2, 3)  # An empty store has revision 1.
        assert not first.HasField("prev_kv")
        assert again.prev_kv.value == b"1"
        found = await etcd.range(b"a")
        (pair,) = found.kvs
        assert (pair.value, pair.create_revision, pair.mod_revision, pair.version) == (b"2", 2, 3, 2)
        assert (found.count, found.more, found.header.revision) == (1, False, 3)
        assert found.header.cluster_id > 0
        assert found.header.member_id > 0
        assert found.header.raft_term > 0


async def test_ranges_follow_the_conventions_of_range_end(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        for key in (b"a", b"b", b"ba", b"c"):
            await etcd.put(key, key)
        assert await keys_of(etcd, b"b", b"c") == [b"b", b"ba"]
        assert await keys_of(etcd, b"b", b"\0") == [b"b", b"ba", b"c"]
        assert await keys_of(etcd, b"\0", b"\0") == [b"a", b"b", b"ba", b"c"]
        assert await keys_of(etcd, b"c", b"b") == []
        with pytest.raises(CallFailed) as failed:
            await etcd.range(b"")
        assert (failed.value.status, failed.value.text) == (3, "etcdserver: key is not provided")


async def test_a_limit_cuts_the_range_and_the_count_is_that_of_the_whole_range(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        for number in range(5):
            await etcd.put(b"k%d" % number, b"v")
        cut = await etcd.range(b"k", b"l", limit=2)
        assert ([each.key for each in cut.kvs], cut.more, cut.count) == ([b"k0", b"k1"], True, 5)
        whole = await etcd.range(b"k", b"l", limit=5)
        assert (len(whole.kvs), whole.more) == (5, False)
        counted = await etcd.range(b"k", b"l", count_only=True)
        assert (len(counted.kvs), counted.count) == (0, 5)
        negative = await etcd.range(b"k", b"l", limit=-1)  # No limit, as in etcd.
        assert (len(negative.kvs), negative.more) == (5, False)
        bare = await etcd.range(b"k", b"l", keys_only=True)
        assert {each.value for each in bare.kvs} == {b""}


async def test_ranges_are_sorted_by_any_field(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        for key, value in ((b"b", b"1"), (b"a", b"3"), (b"c", b"2"), (b"a", b"4")):
            await etcd.put(key, value)
        ascending, descending = 1, 2
        assert await keys_of(etcd, b"a", b"d", sort_order=descending) == [b"c", b"b", b"a"]
        assert await keys_of(etcd, b"a", b"d", sort_order=ascending, sort_target=2) == [b"b", b"a", b"c"]
        assert await keys_of(etcd, b"a", b"d", sort_order=descending, sort_target=1, limit=1) == [b"a"]
        assert await keys_of(etcd, b"a", b"d", sort_order=ascending, sort_target=4) == [b"b", b"c", b"a"]
        assert await keys_of(etcd, b"a", b"d", sort_order=descending, sort_target=3, keys_only=True) == [
            b"a",
            b"c",
            b"b",
        ]
        # Without an order, one row more than the limit is taken in key order, and then sorted.
        assert await keys_of(etcd, b"a", b"d", sort_target=2, limit=1) == [b"b"]
        with pytest.raises(CallFailed) as failed:
            await etcd.range(b"a", sort_target=9)
        assert failed.value.text == "etcdserver: invalid sort option"


async def test_filters_leave_out_rows_before_the_limit(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        for key in (b"a", b"b", b"c"):
            await etcd.put(key)
        found = await etcd.range(b"a", b"\0", min_mod_revision=3, limit=1)
        assert ([each.key for each in found.kvs], found.count, found.more) == ([b"b"], 3, True)
        assert await keys_of(etcd, b"a", b"\0", max_create_revision=2) == [b"a"]


async def test_a_range_at_an_old_revision_tells_the_present_one_in_its_header(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        await etcd.put(b"a", b"old")
        await etcd.put(b"a", b"new")
        found = await etcd.range(b"a", revision=2)
        assert (found.kvs[0].value, found.header.revision) == (b"old", 3)
        with pytest.raises(CallFailed) as ahead:
            await etcd.range(b"a", revision=4)
        assert ahead.value.text == "etcdserver: mvcc: required revision is a future revision"
        await etcd.compact(3)
        with pytest.raises(CallFailed) as compacted:
            await etcd.range(b"a", revision=2)
        assert compacted.value.status == Status.OUT_OF_RANGE
        assert compacted.value.text == "etcdserver: mvcc: required revision has been compacted"
        with pytest.raises(CallFailed, match="compacted"):
            await etcd.compact(3)
        with pytest.raises(CallFailed, match="future"):
            await etcd.compact(99)


async def test_a_range_of_many_pages_comes_as_one_message_of_one_revision(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        value = bytes(200_000)
        for number in range(12):
            await etcd.put(b"k%02d" % number, value)
        found = await etcd.range(b"k", b"l")
        assert (len(found.kvs), found.count, found.more) == (12, 12, False)
        assert {each.value for each in found.kvs} == {value}
        backwards = await etcd.range(b"k", b"l", sort_order=2, limit=11)
        assert [each.key for each in backwards.kvs] == [b"k%02d" % number for number in range(11, 0, -1)]
        assert backwards.more


async def test_deletions_return_what_they_removed(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        for key in (b"a", b"b", b"c"):
            await etcd.put(key, key)
        found = await etcd.delete(b"a", b"c", prev_kv=True)
        assert (found.deleted, [each.value for each in found.prev_kvs]) == (2, [b"a", b"b"])
        nothing = await etcd.delete(b"a")
        assert (nothing.deleted, nothing.header.revision) == (0, 5)
        assert (await etcd.delete(b"z", b"a")).deleted == 0


async def test_a_put_may_keep_the_value_or_the_lease(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        lease_id = (await etcd.grant(60)).ID
        await etcd.put(b"a", b"1", lease=lease_id)
        await etcd.put(b"a", b"2", ignore_lease=True)
        (pair,) = (await etcd.range(b"a")).kvs
        assert (pair.value, pair.lease) == (b"2", lease_id)
        await etcd.put(b"a", ignore_value=True)
        (pair,) = (await etcd.range(b"a")).kvs
        assert (pair.value, pair.lease) == (b"2", 0)
        for fields, text in (
            ({"value": b"x", "ignore_value": True}, "value is provided"),
            ({"lease": 7, "ignore_lease": True}, "lease is provided"),
            ({"lease": 12345}, "requested lease not found"),
        ):
            with pytest.raises(CallFailed) as failed:
                await etcd.put(b"a", **fields)
            assert failed.value.text == f"etcdserver: {text}"
        with pytest.raises(CallFailed, match="key not found"):
            await etcd.put(b"absent", ignore_value=True)


async def test_a_transaction_runs_the_branch_that_its_comparisons_choose(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        await etcd.put(b"a", b"1")
        equal = make("Compare", target=3, key=b"a", value=b"1")
        done = await etcd.txn(compare=[equal], success=[op_put(b"b", b"2"), op_range(b"b")], failure=[op_range(b"a")])
        assert done.succeeded
        assert done.header.revision == 3
        put, found = done.responses
        assert put.response_put.header.revision == 3
        assert put.response_put.header.cluster_id == 0  # Only the outer header names the cluster.
        assert found.response_range.kvs[0].value == b"2"  # A range sees the writes before it.
        other = await etcd.txn(compare=[make("Compare", target=3, key=b"a", value=b"9")], failure=[op_range(b"a")])
        assert not other.succeeded
        assert other.responses[0].response_range.kvs[0].value == b"1"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"target": 0, "version": 2}, True),
        ({"target": 0, "result": 1, "version": 2}, False),
        ({"target": 1, "create_revision": 2}, True),
        ({"target": 2, "result": 2, "mod_revision": 4}, True),
        ({"target": 3, "result": 3, "value": b"1"}, True),
        ({"target": 4, "lease": 0}, True),
        ({"target": 0, "result": 1, "version": -1}, True),
        ({"target": 0, "result": 0, "version": -1}, False),
        ({"target": 0, "result": 2, "version": -1}, False),
        ({"target": 0, "result": 3, "version": -1}, True),
        ({"target": 0}, False),  # A comparison without an operand compares with 0.
    ],
)
async def test_comparisons_have_all_targets_and_operators(
    tmp_path: Path, fields: dict[str, Any], expected: bool
) -> None:
    async with serving(tmp_path / "data") as etcd:
        await etcd.put(b"a", b"1")
        await etcd.put(b"a", b"2")
        done = await etcd.txn(compare=[make("Compare", key=b"a", **fields)])
        assert done.succeeded is expected


async def test_a_comparison_of_a_range_must_hold_for_each_key(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        await etcd.put(b"a", b"1")
        await etcd.put(b"b", b"1")
        same = make("Compare", target=3, key=b"a", value=b"1", range_end=b"c")
        assert (await etcd.txn(compare=[same])).succeeded
        await etcd.put(b"b", b"2")
        assert not (await etcd.txn(compare=[same])).succeeded


async def test_an_inner_transaction_is_chosen_before_anything_is_written(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        is_absent = make("Compare", target=0, key=b"a", version=0)
        inner = op_txn(compare=[is_absent], success=[op_put(b"seen", b"absent")], failure=[op_put(b"seen", b"there")])
        done = await etcd.txn(success=[op_put(b"a"), inner])
        assert done.responses[1].response_txn.succeeded
        assert done.responses[1].response_txn.header.revision == 0  # It is there, and empty.
        assert done.responses[1].response_txn.HasField("header")
        assert (await etcd.range(b"seen")).kvs[0].value == b"absent"


@pytest.mark.parametrize(
    "branch",
    [
        [op_put(b"a"), op_put(b"a")],
        [op_put(b"a"), op_delete(b"a")],
        [op_delete(b"a", b"c"), op_put(b"b")],
        [op_put(b"a"), op_txn(success=[op_put(b"a")])],
        [op_put(b"z"), op_delete(b"b", b"\0")],
    ],
)
async def test_a_branch_that_writes_a_key_twice_is_refused(tmp_path: Path, branch: list[Message]) -> None:
    async with serving(tmp_path / "data") as etcd:
        with pytest.raises(CallFailed) as failed:
            await etcd.txn(success=branch)
        assert (failed.value.status, failed.value.text) == (3, "etcdserver: duplicate key given in txn request")
        assert (await etcd.range(b"\0", b"\0")).count == 0


async def test_the_branches_of_an_inner_transaction_may_write_the_same_key(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        done = await etcd.txn(success=[op_txn(success=[op_put(b"a", b"1")], failure=[op_put(b"a", b"2")])])
        assert done.succeeded
        assert (await etcd.txn(success=[op_delete(b"a"), op_delete(b"a", b"c")])).succeeded


async def test_a_transaction_has_at_most_128_operations_in_a_branch(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        branch = [op_put(b"k%d" % number) for number in range(128)]
        assert (await etcd.txn(success=branch)).succeeded
        with pytest.raises(CallFailed) as failed:
            await etcd.txn(success=[*branch, op_put(b"more")])
        assert failed.value.text == "etcdserver: too many operations in txn request"


async def test_a_deletion_of_too_many_keys_names_the_limit_that_an_operator_can_raise(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        await etcd.store.set_limits(delete_keys_max=2)
        for key in (b"a", b"b", b"c"):
            await etcd.put(key)
        with pytest.raises(CallFailed, match=r"delete_keys_max.*3; the bound is 2"):
            await etcd.delete(b"a", b"d")
        assert (await etcd.range(b"\0", b"\0")).count == 3


async def test_a_transaction_of_reads_makes_no_revision(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        await etcd.put(b"a", b"1")
        applied = (await etcd.store.status()).last_applied
        done = await etcd.txn(success=[op_range(b"a"), op_range(b"z", b"a")])
        assert [each.response_range.count for each in done.responses] == [1, 0]
        empty = await etcd.txn()
        assert empty.succeeded
        assert (await etcd.store.status()).last_applied == applied


async def test_a_value_of_the_greatest_size_is_taken_and_a_larger_one_refused(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        value = bytes(3 << 19)
        await etcd.put(b"a", value)
        assert (await etcd.range(b"a")).kvs[0].value == value
        with pytest.raises(CallFailed) as failed:
            await etcd.put(b"a", bytes((3 << 19) + 1))
        assert (failed.value.status, failed.value.text) == (3, "etcdserver: request is too large")
        with pytest.raises(CallFailed) as failed:
            await etcd.put(b"a", bytes(2_200_000))
        assert failed.value.status == Status.RESOURCE_EXHAUSTED


async def test_a_transaction_whose_range_is_too_long_is_refused_only_if_it_has_no_writes(tmp_path: Path) -> None:
    """Clients take RESOURCE_EXHAUSTED for a refusal, and UNAVAILABLE for an outcome that they do not know."""
    async with serving(tmp_path / "data") as etcd:
        for key in (b"a", b"b"):
            await etcd.put(key, bytes(900_000))
        both = op_range(b"a", b"c")
        for operations, status in (
            ([both], Status.RESOURCE_EXHAUSTED),
            ([op_put(b"c"), both], Status.UNAVAILABLE),
            ([op_txn(success=[op_put(b"d"), both])], Status.UNAVAILABLE),
        ):
            with pytest.raises(CallFailed, match="in a call of its own") as failed:
                await etcd.txn(success=operations)
            assert failed.value.status == status
        assert await keys_of(etcd, b"c", b"e") == [b"c", b"d"]


async def test_a_serializable_range_needs_no_leader_round(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        await etcd.put(b"a", b"1")
        found = await etcd.range(b"a", serializable=True)
        assert found.kvs[0].value == b"1"


def random_txn(random: Random, depth: int) -> Message:
    found = make("TxnRequest")
    for _ in range(random.randrange(4)):
        found.compare.add().key = random.randbytes(random.randrange(200))
    for branch in (found.success, found.failure):
        for _ in range(random.randrange(4)):
            if depth and random.random() < 0.4:
                branch.add().request_txn.CopyFrom(random_txn(random, depth - 1))
            else:
                put = branch.add().request_put
                put.key, put.value, put.lease = b"k", random.randbytes(random.randrange(300)), random.randrange(2**63)
    return found


def operations_of(txn: Message) -> int:
    inner = [
        each.request_txn for branch in (txn.success, txn.failure) for each in branch if each.HasField("request_txn")
    ]
    return len(txn.compare) + len(txn.success) + len(txn.failure) + sum(map(operations_of, inner))


@pytest.mark.parametrize("seed", range(50))
def test_the_operations_of_a_transaction_are_counted_before_it_is_decoded(seed: int) -> None:
    random = Random(seed)
    txn = random_txn(random, 3)
    data = txn.SerializeToString()

    assert operations_in(data, 1 << 30) == operations_of(txn)
    assert operations_in(data, 3) == min(4, operations_of(txn))
    for _ in range(20):  # Damaged bytes raise nothing: the decoder says what is wrong.
        damaged = bytearray(data or b"x")
        damaged[random.randrange(len(damaged))] = random.randrange(256)
        assert operations_in(bytes(damaged[: random.randrange(len(damaged) + 1)]), 2_048) <= 2_049

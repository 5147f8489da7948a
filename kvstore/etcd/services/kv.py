"""The service KV: ranges, puts, deletions, transactions and compaction.

The response to a range comes as one message, as etcd's clients expect; the store reads it in pages of one revision.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from heapq import merge
from itertools import chain, islice
from operator import attrgetter
from typing import Any

from kvstore.errors import Unavailable
from kvstore.etcd.backend import Context, result_of
from kvstore.etcd.call import LongResponse
from kvstore.etcd.errors import COMPACTED, TOO_MANY_OPERATIONS, EtcdError, Status, invalid
from kvstore.etcd.range_gate import ITEM_COST, PAGE_ITEMS_MAX
from kvstore.etcd.schema import Message, make
from kvstore.etcd.transaction_size import ALL_OPERATIONS_MAX
from kvstore.limits import ITEM_OVERHEAD_BYTES, PAGE_BYTES_MAX, TXN_DEPTH_MAX
from kvstore.protocol.commands import (
    Compact,
    Compare,
    Comparison,
    DeleteRange,
    Get,
    Operation,
    Put,
    Range,
    Target,
    Txn,
    command_body,
)
from kvstore.protocol.messages import Consistency, read_request
from kvstore.protocol.results import (
    DeleteRangeResult,
    GetResult,
    KeyRecord,
    OperationResult,
    PutResult,
    RangeResult,
    Record,
    Result,
    TxnResult,
    read_answer,
)
from kvstore.protocol.validation import only_reads
from raft import INT64_MAX

RANGE_BYTES_MAX = 64 << 20
"""The greatest size of the keys and values in the response to one range."""

OPERATIONS_MAX = 128
"""The greatest number of comparisons, and of operations of one branch, as in etcd."""

KEY_NOT_PROVIDED = invalid("key is not provided")
_DUPLICATE = "duplicate key given in txn request"

_TARGETS = (Target.VERSION, Target.CREATE_REVISION, Target.MOD_REVISION, Target.VALUE, Target.LEASE)
_TARGET_FIELDS = ("version", "create_revision", "mod_revision", "value", "lease")
_COMPARISONS = (Comparison.EQUAL, Comparison.GREATER, Comparison.LESS, Comparison.NOT_EQUAL)
_SORTS = (attrgetter("key"), attrgetter("version"), attrgetter("create_revision"), attrgetter("mod_revision"))


# Handlers.


async def handle_range(context: Context, asked: Message) -> Message | None:
    """Answer a Range. Returns None if the response was sent already."""
    check_range(asked)
    consistency = Consistency.LOCAL if asked.serializable else Consistency.LINEARIZABLE
    if not asked.range_end:
        return await _get(context, asked, consistency)
    wanted = range_of(asked)
    if is_empty(asked):
        wanted = Range(asked.key, asked.key, count_only=True)
    if asked.limit > 0 and not _is_reordered(asked) and not _has_filters(asked):
        wanted = replace(wanted, limit=asked.limit)
    first = await read_page(context, wanted, consistency)
    if not _has_rest(wanted, first, len(first.items)):
        response = range_response(asked, first)
        response.header.CopyFrom(context.header(first.revision))
        return response
    del first  # A handler that waits holds no page, because many may wait.
    call = context.call
    call.is_long = True
    while True:
        await call.room()
        async with context.gate.long_ranges.place(call.origin):
            if call.has_room():  # Who enters next must see what this response leaves unread.
                call.answer(await _long_range(context, wanted, consistency, asked))
                return None


async def _get(context: Context, asked: Message, consistency: Consistency) -> Message:
    """Answer a Range of one key. Unlike a range, a get cannot be long, so it waits for no other reads."""
    found = await read(context, Get(asked.key, asked.revision), consistency)
    assert isinstance(found, GetResult), found
    items = () if found.record is None else (_key_record(asked.key, found.record),)
    response = range_response(asked, RangeResult(found.revision, items, more=False, count=len(items)))
    response.header.CopyFrom(context.header(found.revision))
    return response


def _key_record(key: bytes, record: Record) -> KeyRecord:
    return KeyRecord(key, record.value, record.create_revision, record.mod_revision, record.version, record.lease_id)


async def handle_put(context: Context, asked: Message) -> Message:
    """Answer a Put."""
    result = await context.execute(put_of(asked))
    assert isinstance(result, PutResult), result
    response = make("PutResponse", header=context.header(result.revision))
    if result.previous is not None:
        response.prev_kv.CopyFrom(key_value(asked.key, result.previous))
    return response


async def handle_delete_range(context: Context, asked: Message) -> Message:
    """Answer a DeleteRange."""
    if not asked.key and not asked.range_end:
        raise KEY_NOT_PROVIDED
    if is_empty(asked):
        return make("DeleteRangeResponse", header=context.header())
    result = await context.execute(delete_of(asked))
    response = _delete_response(result)
    response.header.CopyFrom(context.header(result.revision))
    return response


async def handle_txn(context: Context, asked: Message) -> Message:
    """Answer a Txn."""
    _check_txn(asked)
    command = txn_of(asked)
    body = command_body(command)
    has_writes = not only_reads(body)
    if not has_writes:
        consistency = Consistency.LOCAL if _is_serializable(asked) else Consistency.LINEARIZABLE
        result = await read(context, command, consistency)
    else:
        result = await context.execute(command)
    assert isinstance(result, TxnResult), result
    try:
        response = _txn_response(asked, result)
    except _LongRange as error:
        raise error.told(has_writes=has_writes) from None
    response.header.CopyFrom(context.header(result.revision))
    return response


async def handle_compact(context: Context, asked: Message) -> Message:
    """Answer a Compact."""
    if asked.revision < 0:
        raise EtcdError(Status.OUT_OF_RANGE, COMPACTED)
    result = await context.execute(Compact(asked.revision))
    return make("CompactionResponse", header=context.header(result.revision))


async def read(context: Context, operation: Get | Range | Txn, consistency: Consistency) -> Result:
    """Read from this member: at once with `LOCAL`; otherwise after the leader has told it how far it must be. While
    this member knows no leader, the client of the port looks for one."""
    own = context.facts.own_address
    if consistency is Consistency.LOCAL:
        response = await context.ask(read_request(operation, consistency, own))
    else:
        here = Consistency.LINEARIZABLE if context.facts.is_leader else Consistency.FOLLOWER
        try:
            response = await context.ask(read_request(operation, here, own))
        except Unavailable:
            response = await context.ask(read_request(operation, Consistency.LINEARIZABLE))
    return read_answer(response, result_of, has_effect=False)


async def read_page(context: Context, wanted: Range, consistency: Consistency) -> RangeResult:
    """Read one page of a range, when it is the turn of this connection."""
    limit = min(wanted.limit or PAGE_ITEMS_MAX, PAGE_ITEMS_MAX)
    async with context.gate.pages.place(context.call.origin):
        page = await read(context, replace(wanted, limit=limit), consistency)
        assert isinstance(page, RangeResult), page
        context.gate.charge(_bytes_of(page.items) + ITEM_COST * len(page.items))
        return page


def _has_rest(wanted: Range, page: RangeResult, count: int) -> bool:
    """True if a range has further pages. `count`: the number of its items up to this page."""
    return page.more and not wanted.count_only and (not wanted.limit or count < wanted.limit)


async def _long_range(context: Context, wanted: Range, consistency: Consistency, asked: Message) -> LongResponse:
    """Answer a range of several pages, all at the revision of the first page. Each page is encoded by itself, so that
    no step takes long."""
    first = page = await read_page(context, wanted, consistency)
    size = count = found_count = 0
    parts: list[bytes] = []
    unsorted: list[Sequence[KeyRecord]] = []
    while True:
        size += _bytes_of(page.items)
        count += len(page.items)
        found = _filtered(asked, page.items)
        if _is_reordered(asked):
            unsorted.append(found)
        else:
            parts.append(_encoded(context, asked, found[: asked.limit - found_count] if asked.limit > 0 else found))
        found_count += len(found)
        is_enough = 0 < asked.limit < found_count and not unsorted
        if is_enough or not _has_rest(wanted, page, count):
            break
        if size > RANGE_BYTES_MAX:
            words = f"etcdserver: the range has more than {RANGE_BYTES_MAX} bytes: set a limit, and read it in pages"
            raise EtcdError(Status.RESOURCE_EXHAUSTED, words)
        last = page.items[-1].key
        limit = wanted.limit - count if wanted.limit else 0
        following = replace(wanted, revision=asked.revision or first.revision, limit=limit)
        following = replace(following, end=last) if wanted.reverse else replace(following, start=last + b"\0")
        page = await read_page(context, following, Consistency.LOCAL)
    if unsorted:
        parts = await _sorted_parts(context, asked, unsorted)
    more = asked.limit > 0 and (page.more or asked.limit < found_count)
    header = context.header(first.revision)
    return LongResponse(make("RangeResponse", header=header, more=more, count=first.count), "kvs", parts)


async def _sorted_parts(context: Context, asked: Message, pages: Sequence[Sequence[KeyRecord]]) -> list[bytes]:
    """Encode the items of all pages in the order that a request wants. Other tasks run after each step."""
    if asked.sort_order == 0 and asked.limit > 0:
        kept = list(islice(chain.from_iterable(pages), asked.limit + 1))
        pages = [kept[at : at + PAGE_ITEMS_MAX] for at in range(0, len(kept), PAGE_ITEMS_MAX)]
    key, is_reverse = _sort_key(asked), asked.sort_order == 2
    ordered: list[list[KeyRecord]] = []
    for page in pages:
        ordered.append(sorted(page, key=key, reverse=is_reverse))
        await context.gate.turn()
    merged: Iterator[KeyRecord] = merge(*ordered, key=key, reverse=is_reverse)
    if asked.limit > 0:
        merged = islice(merged, asked.limit)
    parts: list[bytes] = []
    while items := list(islice(merged, PAGE_ITEMS_MAX)):
        parts.append(_encoded(context, asked, items))
        await context.gate.turn()
    return parts


def _encoded(context: Context, asked: Message, items: Sequence[KeyRecord]) -> bytes:
    part = make("RangeResponse")
    _add_items(part, asked, items)
    return context.call.encode_items(part, "kvs")


def _bytes_of(items: Sequence[KeyRecord]) -> int:
    return sum(len(each.key) + len(each.value or b"") for each in items) + ITEM_OVERHEAD_BYTES * len(items)


# Requests.


def bounds_of(asked: Message) -> tuple[bytes, bytes | None]:
    """Return the keys (start, end) of a request with `key` and `range_end`. `range_end` of one zero byte means that the
    range has no end."""
    key, end = asked.key, asked.range_end
    if not end:
        return key, key + b"\0"
    return (b"" if key == b"\0" and end == b"\0" else key), (None if end == b"\0" else end)


def is_empty(asked: Message) -> bool:
    """True if `range_end` is set and does not lie behind `key`."""
    return bool(asked.range_end) and asked.range_end != b"\0" and asked.range_end <= asked.key


def check_range(asked: Message) -> None:
    """Raise EtcdError if a Range cannot be answered."""
    if not asked.key and not asked.range_end:
        raise KEY_NOT_PROVIDED
    if not 0 <= asked.sort_order <= 2 or not 0 <= asked.sort_target <= 4:
        raise invalid("invalid sort option")
    if asked.revision < 0:
        raise EtcdError(Status.OUT_OF_RANGE, COMPACTED)


def range_of(asked: Message) -> Range:
    """Return the range of a request, without its limit, sort order and filters."""
    start, end = bounds_of(asked)
    is_reverse = asked.sort_order == 2 and asked.sort_target == 0
    needs_values = asked.sort_target == 4 and _is_reordered(asked)
    return Range(
        start,
        end,
        reverse=is_reverse,
        keys_only=asked.keys_only and not needs_values,
        count_only=asked.count_only,
        revision=asked.revision,
    )


def put_of(asked: Message) -> Put:
    """Return the put of a request. Raises EtcdError."""
    if not asked.key:
        raise KEY_NOT_PROVIDED
    if asked.ignore_value and asked.value:
        raise invalid("value is provided")
    if asked.ignore_lease and asked.lease:
        raise invalid("lease is provided")
    if asked.lease < 0:
        raise EtcdError(Status.NOT_FOUND, "etcdserver: requested lease not found")
    return Put(
        asked.key,
        asked.value,
        asked.lease,
        previous=asked.prev_kv,
        keep_value=asked.ignore_value,
        keep_lease=asked.ignore_lease,
    )


def delete_of(asked: Message) -> DeleteRange:
    """Return the deletion of a request."""
    return DeleteRange(*bounds_of(asked), previous=asked.prev_kv)


def txn_of(asked: Message) -> Txn:
    """Return the transaction of a request. Raises EtcdError."""
    return Txn(
        tuple(map(_compare_of, asked.compare)),
        tuple(_operation_of(each) for each in asked.success),
        tuple(_operation_of(each) for each in asked.failure),
    )


def _compare_of(asked: Message) -> Compare:
    if not asked.key:
        raise KEY_NOT_PROVIDED
    if not 0 <= asked.target < len(_TARGETS) or not 0 <= asked.result < len(_COMPARISONS):
        raise invalid("invalid compare")
    end: bytes | None = b""
    if asked.range_end:
        end = None if asked.range_end == b"\0" else asked.range_end
    operand = getattr(asked, _TARGET_FIELDS[asked.target])
    comparison = _COMPARISONS[asked.result]
    if isinstance(operand, int) and operand < 0:
        # The store compares with numbers from 0 on, and so are all its revisions, versions and leases.
        is_true = comparison in (Comparison.GREATER, Comparison.NOT_EQUAL)
        comparison, operand = (Comparison.NOT_EQUAL, INT64_MAX) if is_true else (Comparison.LESS, 0)
    return Compare(asked.key, _TARGETS[asked.target], comparison, operand, end)


def _operation_of(asked: Message) -> Operation:
    kind = asked.WhichOneof("request")
    if kind == "request_range":
        return _range_in_txn(asked.request_range)
    if kind == "request_put":
        return put_of(asked.request_put)
    if kind == "request_delete_range":
        request = asked.request_delete_range
        if not request.key and not request.range_end:
            raise KEY_NOT_PROVIDED
        return DeleteRange(request.key, request.key) if is_empty(request) else delete_of(request)
    if kind == "request_txn":
        return txn_of(asked.request_txn)
    raise invalid("key not found")


def _range_in_txn(asked: Message) -> Range:
    check_range(asked)
    if is_empty(asked):
        return Range(asked.key, asked.key, count_only=True)
    wanted = range_of(asked)
    if asked.limit > 0 and not _is_reordered(asked) and not _has_filters(asked):
        wanted = replace(wanted, limit=asked.limit)
    return wanted


def _check_txn(asked: Message) -> None:
    """Raise EtcdError if a transaction has too many operations, or writes one key twice. Cost: O(operations log
    operations), however they are nested."""
    _check_counts(asked, OPERATIONS_MAX, TXN_DEPTH_MAX, 0)
    for branch in (asked.success, asked.failure):
        _writes_of(branch)


def _check_counts(asked: Message, operations_max: int, depth: int, total: int) -> int:
    """Check the numbers of operations. Returns `total` and the operations of this transaction."""
    counts = (len(asked.compare), len(asked.success), len(asked.failure))
    total += sum(counts)
    if max(counts) > operations_max or total > ALL_OPERATIONS_MAX or not depth:
        raise TOO_MANY_OPERATIONS
    for branch in (asked.success, asked.failure):
        for operation in branch:
            if operation.WhichOneof("request") == "request_txn":
                total = _check_counts(operation.request_txn, operations_max - len(branch), depth - 1, total)
    return total


_Writes = tuple[set[bytes], list[tuple[bytes, bytes | None]]]


def _writes_of(branch: Sequence[Message]) -> _Writes:
    """The keys that a branch puts, and the ranges that it deletes. Raises EtcdError if it writes one key twice."""
    puts: set[bytes] = set()
    ranges: list[tuple[bytes, bytes | None]] = []
    for put_keys, deleted in _writes(branch):
        if not puts.isdisjoint(put_keys):
            raise invalid(_DUPLICATE)
        puts |= put_keys
        ranges += deleted
    if ranges and puts:
        ordered = sorted(puts)
        for start, end in ranges:
            at = bisect_left(ordered, start)
            if at < len(ordered) and (end is None or ordered[at] < end):
                raise invalid(_DUPLICATE)
    return puts, ranges


def _writes(branch: Sequence[Message]) -> Iterator[_Writes]:
    """The keys that each operation puts, and the ranges that it deletes. Of the two branches of an inner transaction,
    only one runs, so their keys may be the same."""
    for operation in branch:
        kind = operation.WhichOneof("request")
        if kind == "request_put":
            yield {operation.request_put.key}, []
        elif kind == "request_delete_range":
            yield set(), [bounds_of(operation.request_delete_range)]
        elif kind == "request_txn":
            inner = operation.request_txn
            keys: set[bytes] = set()
            ranges: list[tuple[bytes, bytes | None]] = []
            for each in (inner.success, inner.failure):
                more_keys, more_ranges = _writes_of(each)
                keys |= more_keys
                ranges += more_ranges
            yield keys, ranges


def _is_serializable(asked: Message) -> bool:
    """True if a transaction of reads may be answered from the state that this member has applied."""
    ranges: list[Message] = []

    def walk(txn: Message) -> None:
        for operation in (*txn.success, *txn.failure):
            kind = operation.WhichOneof("request")
            if kind == "request_range":
                ranges.append(operation.request_range)
            elif kind == "request_txn":
                walk(operation.request_txn)

    walk(asked)
    return bool(ranges) and all(each.serializable for each in ranges)


# Responses.


def key_value(key: bytes, record: Record | KeyRecord) -> Message:
    """Return a record as etcd's clients read it."""
    return make(
        "mvccpb.KeyValue",
        key=key,
        create_revision=record.create_revision,
        mod_revision=record.mod_revision,
        version=record.version,
        value=record.value or b"",
        lease=record.lease_id,
    )


def range_response(asked: Message, found: RangeResult) -> Message:
    """Return the response to a range, without its header: sorted, filtered, and cut at its limit."""
    items = _filtered(asked, found.items)
    more = found.more
    if _is_reordered(asked):
        if asked.sort_order == 0 and asked.limit > 0:
            more = more or len(items) > asked.limit
            items = items[: asked.limit + 1]
        items = sorted(items, key=_sort_key(asked), reverse=asked.sort_order == 2)
    if asked.limit > 0 and len(items) > asked.limit:
        more, items = True, items[: asked.limit]
    response = make("RangeResponse", more=more and asked.limit > 0, count=found.count)
    if not asked.count_only:
        _add_items(response, asked, items)
    return response


def _filtered(asked: Message, items: Sequence[KeyRecord]) -> Sequence[KeyRecord]:
    return [each for each in items if _passes(asked, each)] if _has_filters(asked) else items


def _sort_key(asked: Message) -> Callable[[KeyRecord], Any]:
    return (lambda each: each.value or b"") if asked.sort_target == 4 else _SORTS[asked.sort_target]


def _add_items(response: Message, asked: Message, items: Sequence[KeyRecord]) -> None:
    for each in items:
        pair = response.kvs.add(
            key=each.key,
            create_revision=each.create_revision,
            mod_revision=each.mod_revision,
            version=each.version,
            lease=each.lease_id,
        )
        if each.value and not asked.keys_only:
            pair.value = each.value


def _delete_response(result: Result) -> Message:
    assert isinstance(result, DeleteRangeResult), result
    previous = [key_value(each.key, each) for each in result.previous]
    return make("DeleteRangeResponse", deleted=result.count, prev_kvs=previous)


class _LongRange(Exception):
    """A range in a transaction has more items than one page, and cannot be answered."""

    def told(self, *, has_writes: bool) -> EtcdError:
        """The error for the client. The transaction is carried out, so if it has writes, the code may not be one that
        clients take for a refusal."""
        words = f"etcdserver: a range in the transaction has over {PAGE_BYTES_MAX} bytes: read it in a call of its own"
        if has_writes:
            return EtcdError(Status.UNAVAILABLE, f"{words}. The writes of the transaction are done")
        return EtcdError(Status.RESOURCE_EXHAUSTED, words)


def _txn_response(asked: Message, result: TxnResult) -> Message:
    """Raises _LongRange."""
    branch = asked.success if result.succeeded else asked.failure
    responses = [_response_of(operation, each) for operation, each in zip(branch, result.results, strict=True)]
    return make("TxnResponse", succeeded=result.succeeded, responses=responses)


def _response_of(asked: Message, result: OperationResult) -> Message:
    header = make("ResponseHeader", revision=result.revision)
    kind = asked.WhichOneof("request")
    if kind == "request_range":
        assert isinstance(result, RangeResult), result
        limit = asked.request_range.limit
        if result.more and not 0 < limit <= len(result.items):
            raise _LongRange
        response = range_response(asked.request_range, result)
        response.header.CopyFrom(header)
        return make("ResponseOp", response_range=response)
    if kind == "request_put":
        assert isinstance(result, PutResult), result
        put = make("PutResponse", header=header)
        if result.previous is not None:
            put.prev_kv.CopyFrom(key_value(asked.request_put.key, result.previous))
        return make("ResponseOp", response_put=put)
    if kind == "request_delete_range":
        deleted = make("DeleteRangeResponse") if is_empty(asked.request_delete_range) else _delete_response(result)
        deleted.header.CopyFrom(header)
        return make("ResponseOp", response_delete_range=deleted)
    assert isinstance(result, TxnResult), result
    inner = _txn_response(asked.request_txn, result)
    inner.header.SetInParent()
    return make("ResponseOp", response_txn=inner)


def _is_reordered(asked: Message) -> bool:
    """True if the response is not in the order of keys. A target other than the key sorts even without an order."""
    return bool(asked.sort_target != 0)


def _has_filters(asked: Message) -> bool:
    fields = (
        asked.min_mod_revision,
        asked.max_mod_revision,
        asked.min_create_revision,
        asked.max_create_revision,
    )
    return any(fields)


def _passes(asked: Message, item: KeyRecord) -> bool:
    return (
        (not asked.min_mod_revision or item.mod_revision >= asked.min_mod_revision)
        and (not asked.max_mod_revision or item.mod_revision <= asked.max_mod_revision)
        and (not asked.min_create_revision or item.create_revision >= asked.min_create_revision)
        and (not asked.max_create_revision or item.create_revision <= asked.max_create_revision)
    )

"""The fast path of responses, for puts and gets, which are nearly all requests of a usual load.

The bytes equal the bytes of `frame(encode_response(...))`, as a test checks. One `struct` packs many responses to one
connection, in 0.2 µs each instead of 2.5 µs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import chain, repeat
from struct import Struct
from typing import Any, TypeVar

from kvstore.protocol.cbor_heads import bytes_head, uint_head
from kvstore.protocol.results import PUT_DONE
from kvstore.server.connections import Connection, DirectSink, OpenRequests, OpenRow
from kvstore.store.machine import KvMachine
from kvstore.store.records import RecordItem
from raft import INT64_MAX, Applied, AppliedBatch, Completion, ReadReady, ReadsReady, encode_item

T = TypeVar("T")

_LENGTH_BYTES = 4  # The length before each frame.

_FORMS = ((0, b"", "B"), (24, b"\x18", "B"), (256, b"\x19", "H"), (65_536, b"\x1a", "I"), (1 << 32, b"\x1b", "Q"))
"""The shortest forms of a CBOR integer: (the least number in this form, the head before the number, its `struct`
format)."""


def _form_of(number: int) -> int:
    assert 0 <= number <= INT64_MAX, number
    return (number > 23) + (number > 255) + (number > 65_535) + (number > 0xFFFF_FFFF)


class ResponseBatcher:
    """Sends responses for completions that cover many tickets."""

    def __init__(
        self,
        node_id: str,
        opened: OpenRequests,
        connections: Mapping[int, Connection],
        put: Callable[[Connection, bytes], None],
        answer: Callable[[OpenRow, Completion], None],
    ) -> None:
        """`put` queues frames on a connection. `answer` is the general path, for one ticket."""
        self._encoder = FastEncoder(node_id)
        self._opened, self._connections = opened, connections
        self._put, self._answer = put, answer

    def applied(self, batch: AppliedBatch) -> None:
        """Respond to each command as `answer` does. Commands that were proposed together usually end together."""
        tickets, results, opened = batch.tickets, batch.results, self._opened
        assert len(tickets) == len(results), batch.index
        if len(tickets) == 1 and results[0][-1] is PUT_DONE:
            self._single_put(tickets[0], results[0][1])
            return
        place, end = 0, len(tickets)
        while place < end:
            start = place
            open_batch = opened.batches.get(tickets[start])
            if open_batch is None:
                while place < end and tickets[place] not in opened.batches:
                    place += 1
                self._one_by_one(tickets[start:place], results[start:place], batch.index)
                continue
            count = len(open_batch.request_ids)
            part = results[start : start + count]
            revisions = [result[1] for result in part if result[-1] is PUT_DONE]
            if len(revisions) == count and tickets[start + count - 1] == tickets[start] + count - 1:
                del opened.batches[tickets[start]]
                self._puts(self._connections.get(open_batch.connection_id), open_batch.request_ids, revisions)
                place += count
            else:
                opened.expand(tickets[start])  # Not all commands of the batch are puts, or the batch spans two entries.

    def _one_by_one(self, tickets: Sequence[int], results: Sequence[Any], index: int) -> None:
        """Respond to each command as `answer` does. Commands of one connection are usually consecutive."""
        last_id, connection = 0, None
        ids: list[int] = []
        revisions: list[int] = []
        for ticket, result in zip(tickets, results, strict=True):
            opened = self._opened.take(ticket)
            if opened is None:
                continue  # The client no longer waits for this result.
            if opened[0] != last_id:
                self._puts(connection, ids, revisions)
                last_id, connection, ids, revisions = opened[0], self._connections.get(opened[0]), [], []
            if result[-1] is PUT_DONE:
                ids.append(opened[1])
                revisions.append(result[1])
            else:
                self._answer(opened, Applied(ticket, index, result))
        self._puts(connection, ids, revisions)

    def _single_put(self, ticket: int, revision: int) -> None:
        opened = self._opened.by_ticket.pop(ticket, None) or self._opened.take(ticket)  # `take` is rarely needed.
        connection = None if opened is None else self._connections.get(opened[0])
        if opened is not None and connection is not None:
            connection.in_flight -= 1
            if connection.sink is not None:
                connection.sink.puts_done((opened[1],), (revision,))
            else:
                self._put(connection, self._encoder.put(opened[1], revision))

    def reads_ready(self, ready: ReadsReady, machine: KvMachine, unsent_bytes_max: int) -> None:
        """Respond to each read as `answer` does. All reads belong to one connection, and most of them are gets of
        existing keys."""
        if len(ready.tickets) == 1:
            self._single_read(ready.tickets[0], machine, unsent_bytes_max)
            return
        rows = list(map(self._opened.by_ticket.pop, ready.tickets))
        connection = self._connections.get(rows[0][0])
        if connection is None:
            return  # The client is gone.
        assert rows[-1][0] == connection.connection_id, rows[-1]
        if connection.sink is not None:
            self._tell_gets(connection, connection.sink, rows, machine)
            return
        ids: list[int] = []
        found: list[RecordItem] = []
        others: list[tuple[OpenRow, ReadReady]] = []  # Ranges, absent keys, and reads without room.
        room_bytes = unsent_bytes_max - connection.unsent_bytes
        records = machine.records_of([row[4][1] for row in rows])
        for ticket, row, record in zip(ready.tickets, rows, records, strict=True):
            if record is not None and row[4][0] == 2 == len(row[4]) and room_bytes > 0:
                room_bytes -= len(record[0])
                ids.append(row[1])
                found.append(record)
            else:
                others.append((row, ReadReady(ticket)))
        if ids:
            connection.in_flight -= len(ids)
            self._put(connection, self._encoder.gets(ids, machine.revision, found))
        for row, completion in others:
            self._answer(row, completion)

    def _single_read(self, ticket: int, machine: KvMachine, unsent_bytes_max: int) -> None:
        opened = self._opened.by_ticket.pop(ticket)
        connection, body = self._connections.get(opened[0]), opened[4]
        if connection is None:
            return  # The client is gone.
        if connection.sink is not None:
            self._tell_gets(connection, connection.sink, (opened,), machine)
            return
        record = machine.records_of((body[1],))[0] if body[0] == 2 == len(body) else None
        if record is not None and connection.unsent_bytes < unsent_bytes_max:
            connection.in_flight -= 1
            self._put(connection, self._encoder.get(opened[1], machine.revision, record))
        else:
            self._answer(opened, ReadReady(ticket))

    def _tell_gets(self, connection: Connection, sink: DirectSink, rows: Sequence[OpenRow], machine: KvMachine) -> None:
        """Respond to direct requests, which are gets."""
        connection.in_flight -= len(rows)
        records = machine.records_of([row[4][1] for row in rows])
        sink.gets_done([row[1] for row in rows], machine.revision, records)

    def _puts(self, connection: Connection | None, ids: Sequence[int], revisions: Sequence[int]) -> None:
        if connection is not None and ids:
            connection.in_flight -= len(ids)
            if connection.sink is not None:
                connection.sink.puts_done(ids, revisions)
            else:
                self._put(connection, self._encoder.puts(ids, revisions))


class FastEncoder:
    """Encodes the responses of one member."""

    def __init__(self, node_id: str) -> None:
        self._put_end = b"\x00" + encode_item(node_id) + b"\x81\x01"
        self._get_middle = b"\x01" + encode_item(node_id) + b"\x82\x02"

    def put(self, request_id: int, revision: int) -> bytes:
        """Encode the response to a single put, as `puts` does."""
        pack, before, between, size_bytes = _layout(_form_of(request_id), _form_of(revision))
        after = self._put_end
        head = (size_bytes + len(after) - _LENGTH_BYTES).to_bytes(_LENGTH_BYTES, "big") + b"\x86" + before
        return pack(head, request_id, between, revision) + after

    def get(self, request_id: int, revision: int, record: RecordItem) -> bytes:
        """Encode the response to a single get, as `gets` does."""
        pack, before, between, size_bytes = _layout(_form_of(request_id), _form_of(revision))
        rest = self._get_middle + _record_item(record)
        head = (size_bytes + len(rest) - _LENGTH_BYTES).to_bytes(_LENGTH_BYTES, "big") + b"\x86" + before
        return pack(head, request_id, between, revision) + rest

    def puts(self, request_ids: Sequence[int], revisions: Sequence[int]) -> bytes:
        """Encode frames of `[request_id, 0, revision, 0, node_id, [1]]`."""
        of_ids, of_revisions = _form_of(min(request_ids)), _form_of(min(revisions))
        if len(request_ids) > 1 and (of_ids != _form_of(max(request_ids)) or of_revisions != _form_of(max(revisions))):
            return _halves(self.puts, request_ids, revisions)
        pack, before, between, size_bytes = _layout(of_ids, of_revisions)
        after = self._put_end
        head = (size_bytes + len(after) - _LENGTH_BYTES).to_bytes(_LENGTH_BYTES, "big") + b"\x86" + before
        return after.join(map(pack, repeat(head), request_ids, repeat(between), revisions)) + after

    def gets(self, request_ids: Sequence[int], revision: int, records: Sequence[RecordItem]) -> bytes:
        """Encode frames of `[request_id, 0, revision, 1, node_id, [2, record]]`, the responses to linearizable reads at
        one revision."""
        of_ids = _form_of(min(request_ids))
        if of_ids != _form_of(max(request_ids)):
            return _halves(lambda ids, rows: self.gets(ids, revision, rows), request_ids, records)
        pack, before, between, size_bytes = _layout(of_ids, _form_of(revision))
        after = self._get_middle
        rest_bytes = size_bytes + len(after) - _LENGTH_BYTES
        rows = list(map(_record_item, records))
        heads = [(rest_bytes + len(row)).to_bytes(_LENGTH_BYTES, "big") + b"\x86" + before for row in rows]
        packed = map(pack, heads, request_ids, repeat(between), repeat(revision))
        return b"".join(chain.from_iterable(zip(packed, repeat(after), rows)))


def _record_item(record: RecordItem) -> bytes:
    """Return the same bytes as `encode_item(record)`, in 0.8 µs instead of 2.5 µs."""
    value, create_revision, mod_revision, version, lease_id = record
    return b"\x85%b%b%b%b%b%b" % (
        bytes_head(len(value)), value,
        uint_head(create_revision), uint_head(mod_revision), uint_head(version), uint_head(lease_id),
    )  # fmt: skip


@cache
def _layout(of_ids: int, of_revisions: int) -> tuple[Callable[..., bytes], bytes, bytes, int]:
    """Return the layout of the beginning of a response, up to its revision: the pack function, the bytes before the id,
    the bytes between id and revision, and the size of the packed bytes."""
    _, id_head, id_size = _FORMS[of_ids]
    _, revision_head, revision_size = _FORMS[of_revisions]
    between = b"\x00" + revision_head
    layout = Struct(f">{_LENGTH_BYTES + 1 + len(id_head)}s{id_size}{len(between)}s{revision_size}")
    return layout.pack, id_head, between, layout.size


def _halves(encode: Callable[[Sequence[int], Sequence[T]], bytes], ids: Sequence[int], rows: Sequence[T]) -> bytes:
    """Encode the two halves of the rows separately, because their integers differ in size. A half is divided again
    until all its integers have one size. Such rows are rare within a connection."""
    half = len(ids) // 2
    return encode(ids[:half], rows[:half]) + encode(ids[half:], rows[half:])

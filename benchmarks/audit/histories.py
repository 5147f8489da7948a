"""Makes linearizable histories of any size in numpy, from a seed. Every operation takes effect at one instant between
its call and its return.

Clients are closed loops: each calls its next operation after the previous one has returned. Writes of unknown outcome
have no return; 60 % of them take effect, at most 20 ms after their call. After a write of unknown outcome, the client
continues under a new name. A compare-and-set that is meant to succeed expects the current value of its key; one that is
meant to fail expects an older value. Values are unique. Each change has its own revision; revisions are counted over
all keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NEVER = 10**12  # A value that nobody wrote.
GET, PUT, DELETE, CAS = range(4)
ROWS_PER_FILE = 1_000_000
_NAMES: Any = pa.array(["get", "put", "delete", "cas"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The parameters of a history.

    `zipf`: the exponent of the popularity of keys; 0: all keys are equally popular. Each share is a fraction of all
    operations. The rest of the operations, after puts, deletions and compare-and-sets, are reads. `watches`: the number
    of watches of all keys; with watches, no outcome may be unknown.
    """

    name: str
    clients: int
    keys: int
    zipf: float = 0.0
    put_share: float = 0.35
    delete_share: float = 0.05
    cas_share: float = 0.15
    unknown_share: float = 0.0
    revisions: bool = True
    watches: int = 0


SHAPES = (
    Shape(name="10 clients, 100 keys", clients=10, keys=100),
    Shape(name="50 clients, 1000 keys", clients=50, keys=1000),
    Shape(name="100 clients, 10 keys (zipf)", clients=100, keys=10, zipf=1.0),
)


@dataclass(frozen=True, slots=True)
class History:
    """The columns of a history: row i of every column is about operation i.

    A value is the op_id of the write that wrote it. -1 stands for an absent key, or for a field that does not apply.
    """

    op_id: Int64s
    client: Int64s
    name: Int64s  # How many times the client has taken a new name.
    kind: Int64s
    key: Int64s
    call: Int64s
    ret: Int64s
    unknown: Bools
    succeeded: Bools  # For a deletion: whether it found a record.
    revision: Int64s  # 0: none.
    expected: Int64s
    seen: Int64s
    mod: Int64s
    create: Int64s
    version: Int64s

    def __len__(self) -> int:
        return len(self.kind)

    def parts(self, rows: int) -> Iterator[History]:
        """Yield the history in parts of at most `rows` rows, in order."""
        for begin in range(0, len(self), rows):
            yield History(*(getattr(self, field.name)[begin : begin + rows] for field in fields(self)))


def generate(shape: Shape, operations: int, seed: int) -> History:
    """Return a linearizable history, in the order of the calls. The same arguments give the same history."""
    random = np.random.default_rng(seed)
    client, call, ret = _times(shape, operations, random)
    kind = np.full(operations, GET)
    draw = random.random(operations)
    puts, deletes = shape.put_share, shape.put_share + shape.delete_share
    kind[draw < deletes + shape.cas_share] = CAS
    kind[draw < deletes] = DELETE
    kind[draw < puts] = PUT
    popularity = 1.0 / np.arange(1, shape.keys + 1) ** shape.zipf
    key = random.choice(shape.keys, operations, p=popularity / popularity.sum())
    # 55 % of the operations are writes.
    unknown = (kind != GET) & (random.random(operations) < shape.unknown_share / 0.55)
    effect = call + (random.random(operations) * (ret - call)).astype(np.int64)
    late = call + random.integers(1, 20_000_000, operations)
    effect = np.where(unknown, np.where(random.random(operations) < 0.6, late, -1), effect)
    fails = (kind == CAS) & (random.random(operations) < 0.3)
    return _played(shape, client, kind, key, call, ret, unknown, effect, fails)


def _times(shape: Shape, operations: int, random: np.random.Generator) -> tuple[Int64s, Int64s, Int64s]:
    rounds = -(-operations // shape.clients)
    lasts = random.integers(200_000, 3_000_000, (rounds, shape.clients))
    pauses = random.integers(1, 300_000, (rounds, shape.clients))
    ends = np.cumsum(lasts + pauses, axis=0)
    client = np.tile(np.arange(shape.clients), rounds)[:operations]
    ret = ends.reshape(-1)[:operations]
    call = (ends - lasts).reshape(-1)[:operations]
    by_call = np.argsort(call, kind="stable")
    return client[by_call], call[by_call], ret[by_call]


def _played(
    shape: Shape, client: Int64s, kind: Int64s, key: Int64s, call: Int64s, ret: Int64s, unknown: Bools, effect: Int64s,
    fails: Bools,
) -> History:  # fmt: skip
    """Compute what each operation returned, from the last write of the same key that took effect earlier."""
    n = len(kind)
    happened = np.flatnonzero(effect >= 0)
    at = happened[np.lexsort((effect[happened], key[happened]))]
    writes = (kind[at] != GET) & ~fails[at]
    begins = np.flatnonzero(np.r_[True, np.diff(key[at]) != 0]) if len(at) else at
    begin = np.repeat(begins, np.diff(np.r_[begins, len(at)]))
    last = np.r_[-1, _last(writes)[:-1]]
    last = np.where(last >= begin, last, -1)
    present = (last >= 0) & (kind[at][last] != DELETE)
    expects_old = _last(writes & (kind[at] != DELETE))
    changed = writes & ((kind[at] != DELETE) | present)
    in_time = np.argsort(effect[at], kind="stable")
    revision_at = np.empty(len(at), np.int64)
    revision_at[in_time] = 1 + np.cumsum(changed[in_time])
    makes = writes & (kind[at] != DELETE)
    number, creation = np.cumsum(makes), _last(makes & ~present)
    value = np.where(present, at[last], -1)
    older = np.where(present, expects_old[np.maximum(last - 1, 0)], -1)
    older = np.where((older >= begin) & (older != last), at[older], -2)  # -2 stands for a value that nobody wrote.

    def spread(column: Int64s, nothing: int) -> Int64s:
        out = np.full(n, nothing, np.int64)
        out[at] = column
        return out

    reads = present & ((kind[at] == GET) | fails[at])
    expected = np.where(kind[at] == CAS, np.where(fails[at], older, value), -1)
    shown = reads & shape.revisions
    succeeded = np.zeros(n, np.bool_)
    succeeded[at] = changed
    return History(
        np.arange(n), client, _names(client, unknown), kind, key, call, ret, unknown, succeeded,
        revision=np.where(unknown, 0, spread(revision_at, 0)) if shape.revisions else np.zeros(n, np.int64),
        expected=spread(expected, -2),
        seen=spread(np.where(reads, value, -1), -1),
        mod=spread(np.where(shown, revision_at[last], -1), -1),
        create=spread(np.where(shown, revision_at[creation[last]], -1), -1),
        version=spread(np.where(shown, number[last] - number[creation[last]] + 1, -1), -1),
    )  # fmt: skip


def _names(client: Int64s, unknown: Bools) -> Int64s:
    """For each operation, count the earlier operations of its client that ended unknown."""
    by_client = np.argsort(client, kind="stable")
    lost = unknown[by_client].astype(np.int64)
    before = np.cumsum(lost) - lost
    begins = np.r_[True, np.diff(client[by_client]) != 0]
    base = np.maximum.accumulate(np.where(begins, before, 0))
    names = np.empty(len(client), np.int64)
    names[by_client] = before - base
    return names


def _last(where: Bools) -> Int64s:
    return np.maximum.accumulate(np.where(where, np.arange(len(where)), -1))


def write(history: History, folder: Path, run_id: str = "made") -> Path:
    """Write the history as a run folder of Parquet files (docs/reference/specification.md#101-files)."""
    (folder / "ops").mkdir(parents=True)
    for number, part in enumerate(history.parts(ROWS_PER_FILE)):
        parquet.write_table(table(part, run_id), folder / "ops" / f"{number:04d}.parquet", compression="zstd")
    return folder


def table(history: History, run_id: str = "made") -> pa.Table:
    """Return the history as an Arrow table of the rows in docs/reference/specification.md#103-row."""
    n, kind, ok = len(history), history.kind, ~history.unknown
    text = pa.large_string()

    nothing = pa.scalar("", text)

    def named(prefix: str, ids: Int64s, where: Bools, suffix: Any = nothing) -> Any:
        # binary_join_element_wise takes scalars and arrays together, although its type stubs do not allow this.
        join: Any = pc.binary_join_element_wise
        return join(pa.scalar(prefix, text), pa.array(ids, mask=~where).cast(text), suffix, nothing)

    def number(ids: Int64s, where: Bools) -> Any:
        return pa.array(ids, mask=~where)

    def same(word: str) -> Any:
        return pa.array([word]).take(np.zeros(n, np.int64))

    cas, reads = kind == CAS, (kind == GET) | ((kind == CAS) & ~history.succeeded)
    found = np.where(kind == DELETE, history.succeeded, history.seen >= 0)
    shown = ok & reads & (history.seen >= 0)
    output = pa.StructArray.from_arrays(
        [
            pa.array(history.succeeded | (kind == PUT), mask=kind == GET),
            pa.array(found, mask=~(reads | (kind == DELETE))),
            named("v", history.seen, shown),
            number(history.create, shown & (history.create >= 0)),
            number(history.mod, shown & (history.mod >= 0)),
            number(history.version, shown & (history.version >= 0)),
        ],
        names=["succeeded", "found", "value", "create_revision", "mod_revision", "version"],
        mask=pa.array(~ok),
    )
    every = np.ones(n, np.bool_)
    return pa.table(
        {
            "run_id": same(run_id),
            "op_id": pa.array(history.op_id),
            "client": named("c", history.client, every, named(".", history.name, every)),
            "op": _NAMES.take(kind),
            "key": named("k", history.key, every),
            "value": named("v", history.op_id, (kind == PUT) | cas),
            "expected": named(
                "v", np.where(history.expected == -2, NEVER, history.expected), cas & (history.expected != -1)
            ),
            "output": output,
            "status": pa.array(["ok", "unknown"]).take(history.unknown.astype(np.int64)),
            "call_ns": pa.array(history.call),
            "return_ns": number(history.ret, ok),
            "clock_id": same("simulated"),
            "revision": number(history.revision, ok & (history.revision > 0)),
            "consistency": same("linearizable"),
            "node": pa.array(["n1", "n2", "n3"]).take(history.client % 3),
        }
    )

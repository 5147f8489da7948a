"""A program that shields its work under a lock from cancellation. A test runs the program as a process, and stops it.

    lock_holder.py write LOCK KEY
    lock_holder.py replace LOCK KEY VALUE [unguarded] [paused]

`write` obtains the lock repeatedly. While it holds the lock, it writes the record until a write is refused. `replace`
reads the record under the lock and then writes a new value. It relies on the lock, which should make the two steps one
change. With `paused`, the program stops itself between the read and the write (SIGSTOP). With `unguarded`, the write
does not compare the fence.

The program reports what happens as JSON lines on stdout. `replace` reports rows of a history. Their `call_ns` and
`return_ns` come from `RunClock`, which all processes of a machine share.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from itertools import count

import trio

from harness.recording.clock import RunClock
from harness.recording.history import Row, canonical_json, to_text
from harness.workload.row_fields import asked
from kvstore import Client, CompareAndSet, LeaseLost, LockLost
from kvstore.recipes.lock import Lock

TTL_SECONDS = 1.0


def report(kind: str, **fields: object) -> None:
    print(json.dumps({"kind": kind, **fields}), flush=True)


async def write(client: Client, name: str, key: str) -> None:
    """Obtain the lock and write the record under it, until a write is refused. Then obtain the lock again."""
    while True:
        try:
            async with client.lock(name, ttl_seconds=TTL_SECONDS) as lock:
                with trio.CancelScope(shield=True):
                    await _write_until_refused(lock, key)
        except LeaseLost as error:
            report("lost", error=str(error))


async def _write_until_refused(lock: Lock, key: str) -> None:
    for number in count():
        try:
            await lock.guarded().put(key, f"{lock.fence} {number}").commit()
        except LockLost as error:
            report("refused", fence=lock.fence, error=str(error))
            return
        if number == 0:
            report("wrote", fence=lock.fence)


async def replace(client: Client, name: str, key: str, value: str, options: Sequence[str]) -> None:
    """Replace the record under the lock. Reports two rows: `lock` for the lock, and `cas` for the read and the
    write."""
    clock = RunClock()
    row: Row = {"op": "lock", "request": canonical_json({"name": name}), "call_ns": clock.now_ns()}
    try:
        async with client.lock(name, ttl_seconds=TTL_SECONDS) as lock:
            got = {"key": to_text(lock.key), "fence": lock.fence, "lease_id": lock.lease.id}
            ended: Row = {"status": "ok", "return_ns": clock.now_ns(), "output": {"answer": canonical_json(got)}}
            report("row", called=row, ended=ended)
            with trio.CancelScope(shield=True):
                called_ns = clock.now_ns()
                record = (await client.get(key)).record
                assert record is not None, key
                if "paused" in options:
                    os.kill(os.getpid(), signal.SIGSTOP)
                try:
                    if "unguarded" in options:
                        revision = (await client.put(key, value)).revision
                    else:
                        revision = (await lock.guarded().put(key, value).commit()).revision
                except LockLost as error:
                    ended = {"status": "fail", "error": error.word}
                else:
                    ended = {"status": "ok", "revision": revision, "output": {"succeeded": True}}
                change = CompareAndSet(key.encode(), value.encode(), record.value)
                report(
                    "row", called={**asked(change), "call_ns": called_ns}, ended=ended | {"return_ns": clock.now_ns()}
                )
    except LeaseLost as error:
        report("lost", error=str(error))


async def main(*arguments: str) -> None:
    command, name, key, *more = arguments
    async with Client(os.environ["HWM_ENDPOINTS"].split(","), deadline_seconds=30.0) as client:
        if command == "write":
            await write(client, name, key)
        else:
            await replace(client, name, key, more[0], more[1:])


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])

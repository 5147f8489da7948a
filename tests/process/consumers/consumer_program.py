"""A program that consumes a log and writes the result of each record. A test runs it as a process, and kills it.

    consumer_program.py PREFIX GROUP RESULTS

For each record the program appends its value to the keys below RESULTS, in the transaction that commits the record. The
program continues until it is killed. If its lease is lost, it joins the group again.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

import trio

from kvstore import Client, LeaseLost, LockLost, OutcomeUnknown, Unavailable

TTL_SECONDS = 1.0
PAUSE_SECONDS = 0.1


async def main(*arguments: str) -> None:
    prefix, group, results = arguments
    async with Client(os.environ["HWM_ENDPOINTS"].split(","), deadline_seconds=30.0) as client:
        while True:
            with suppress(LeaseLost, LockLost, OutcomeUnknown, Unavailable):
                name = str(os.getpid())
                async with client.consume(
                    prefix, group=group, member=name, from_revision=1, ttl_seconds=TTL_SECONDS
                ) as consumer:
                    print("active", flush=True)
                    async for record in consumer:
                        value = record.value
                        assert value is not None, record
                        await record.transaction().append(results, value).commit()
            await trio.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])

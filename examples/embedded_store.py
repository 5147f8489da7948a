"""A durable store inside a program, without a server and without a port. The program counts how often it has run.

python examples/embedded_store.py [FOLDER]
"""

from __future__ import annotations

import sys

import trio

from kvstore import open_node


async def main(folder: str) -> None:
    async with open_node(folder, bootstrap=True) as store:
        found = await store.get("runs")
        runs = int(found.record.value) + 1 if found.record else 1
        await store.put("runs", str(runs))
        print(f"run number {runs}, at revision {(await store.get('runs')).revision}")


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else "example-data")

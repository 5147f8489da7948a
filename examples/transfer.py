"""A client of a cluster, which moves money between accounts while other clients do the same.

hwm serve data --bootstrap --listen-client 127.0.0.1:7101      (in another shell)
python examples/transfer.py 127.0.0.1:7101
"""

from __future__ import annotations

import sys

import trio

from kvstore import Client, Compare, Comparison, OutcomeUnknown, Put, Target


async def transfer(client: Client, source: str, target: str, amount: int) -> bool:
    """Move `amount` from `source` to `target` in one transaction; return False if `source` has less than `amount`."""
    while True:
        one, two = await client.get(source), await client.get(target)
        assert one.record is not None
        assert two.record is not None
        if int(one.record.value) < amount:
            return False
        unchanged = [
            Compare(source, Target.MOD_REVISION, Comparison.EQUAL, one.record.mod_revision),
            Compare(target, Target.MOD_REVISION, Comparison.EQUAL, two.record.mod_revision),
        ]
        written = await client.txn(
            unchanged,
            [Put(source, str(int(one.record.value) - amount)), Put(target, str(int(two.record.value) + amount))],
        )
        # If another client has changed an account since the read, nothing is written. Then read both accounts again.
        if written.succeeded:
            return True


async def main(endpoints: list[str]) -> None:
    async with Client(endpoints) as client:
        for name in ("alice", "bob"):
            await client.put(name, "100")
        try:
            async with trio.open_nursery() as nursery:
                for _ in range(10):
                    nursery.start_soon(transfer, client, "alice", "bob", 7)
                    nursery.start_soon(transfer, client, "bob", "alice", 3)
        except* OutcomeUnknown:
            print("a transfer may or may not have happened; the sum is right either way")
        listing = await client.range(prefix="")
        balances = {item.key.decode(): int(item.value or b"0") for item in listing.items}
        print(f"{balances}, together {balances['alice'] + balances['bob']}")


if __name__ == "__main__":
    trio.run(main, sys.argv[1:] or ["127.0.0.1:7101"])

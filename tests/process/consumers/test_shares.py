"""Members of a group with shares, against a running cluster whose leader is killed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from kvstore import Client, Consumer
from kvstore.recipes import even_starts
from tests.process.servers import running_cluster

pytestmark = [pytest.mark.process, pytest.mark.timeout(100)]

PATIENCE_SECONDS = 60.0
STARTS = even_starts(4, "0123456789abcdef")
RECORDS = 300


class Holdings:
    """The shares that each of two members works on."""

    def __init__(self) -> None:
        self._held: list[set[int]] = [set(), set()]
        self._changed = trio.Event()

    @contextmanager
    def of(self, member: int, share: int) -> Iterator[None]:
        """For the time of a `with` block, a member works on a share."""
        self._held[member].add(share)
        self._tell()
        try:
            yield
        finally:
            self._held[member].discard(share)
            self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def until(self, *counts: int) -> None:
        """Wait until the members work on this many shares."""
        with trio.fail_after(PATIENCE_SECONDS):
            while tuple(map(len, self._held)) != counts:
                await self._changed.wait()


async def _be_member(client: Client, member: int, holdings: Holdings) -> None:
    async def work(consumer: Consumer) -> None:
        with holdings.of(member, consumer.share.number):
            async for record in consumer:
                assert record.value is not None
                await record.transaction().append("done/", record.value).commit()

    await client.consume_shares("log/", work, group="g", shares=STARTS, from_revision=1, ttl_seconds=5)


async def test_shares_move_to_a_new_member_and_back_while_the_leader_is_killed(tmp_path: Path) -> None:
    holdings = Holdings()
    with running_cluster(tmp_path, 3) as cluster:
        async with cluster.client() as client, trio.open_nursery() as nursery:
            nursery.start_soon(_be_member, client, 0, holdings)
            await holdings.until(4, 0)
            second = trio.CancelScope()

            async def be_second() -> None:
                async with cluster.client() as other:
                    with second:
                        await _be_member(other, 1, holdings)

            nursery.start_soon(be_second)
            for number in range(RECORDS // 2):
                await client.append(b"log/%x/" % (number % 16), str(number))
            await holdings.until(2, 2)
            view = await client.members()
            assert view.leader_id is not None
            leader = cluster.servers[view.leader_id]
            leader.kill()
            for number in range(RECORDS // 2, RECORDS):
                await client.append(b"log/%x/" % (number % 16), str(number))
            leader.start()
            second.cancel()
            await holdings.until(4, 0)
            with trio.fail_after(PATIENCE_SECONDS):
                async with client.watch(prefix="done/") as changes:
                    while (await client.range(prefix="done/")).count < RECORDS:
                        await anext(changes)
            log = [item async for item in client.items(prefix="log/")]
            done = [item.value async for item in client.items(prefix="done/")]
            nursery.cancel_scope.cancel()
    assert len(log) == RECORDS
    order: defaultdict[int, list[bytes | None]] = defaultdict(list)
    share_of = {item.value: sum(item.key >= b"log/" + start for start in STARTS) for item in log}
    for value in done:
        order[share_of[value]].append(value)
    by_revision = sorted(log, key=lambda item: item.create_revision)
    assert order == {
        share: [item.value for item in by_revision if share_of[item.value] == share] for share in range(1, 5)
    }
    assert max(Counter(done).values()) == 1

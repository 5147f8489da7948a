"""Consumers that are slower than the log use a bounded amount of memory. The member runs in the same process."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from kvstore import open_node

WINDOW_BYTES, VALUE_BYTES, RECORDS = 4_000, 1_000, 100


@pytest.mark.timeout(60)
async def test_a_slow_consumer_holds_its_window_and_one_revision(tmp_path: Path) -> None:
    async with (
        open_node(tmp_path / "data", bootstrap=True) as store,
        store.consume("log/", group="g", window_bytes=WINDOW_BYTES) as consumer,
    ):
        revisions = [(await store.append("log/", bytes(VALUE_BYTES))).revision for _ in range(RECORDS)]
        record = await anext(consumer)
        watch = consumer._changes
        assert watch is not None
        stream = watch._stream  # type: ignore[attr-defined]
        with trio.fail_after(30):
            while stream._held_bytes < WINDOW_BYTES // 2:
                await store.get("log/")
        for _ in range(20):  # The member has answered a later request, so by now it would have sent further changes.
            await store.get("log/")
            assert stream._held_bytes <= WINDOW_BYTES + 2 * VALUE_BYTES
        got = [record.revision] + [(await anext(consumer)).revision for _ in revisions[1:]]
        assert got == revisions

"""A client that is used in a wrong place, such as another event loop, fails immediately with a clear error. It stays
usable for its owner."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from kvstore import Client, OperationFailed, WrongContext, open_node

SECONDS_MAX = 20.0

FORK = """
import os, sys, trio
from kvstore import WrongContext, open_node

async def main():
    async with open_node(sys.argv[1], bootstrap=True) as store:
        await store.put("by", "parent")
        child = os.fork()
        if child == 0:
            try:
                await store.put("by", "child")
            except WrongContext as error:
                print(error, flush=True)
                os._exit(42)
            os._exit(1)
        _, status = os.waitpid(child, 0)
        await store.put("after", "fork")
        assert (await store.get("by")).record.value == b"parent"
        sys.exit(os.waitstatus_to_exitcode(status))

trio.run(main)
"""


def in_another_trio_loop(store: Client) -> None:
    trio.run(store.put, "key", "from elsewhere")


def in_asyncio(store: Client) -> None:
    asyncio.run(store.put("key", "from elsewhere"))


@pytest.mark.parametrize("use", [in_another_trio_loop, in_asyncio])
async def test_a_call_from_another_loop_fails_at_once_and_the_owner_goes_on(
    tmp_path: Path, use: Callable[[Client], None]
) -> None:
    with trio.fail_after(SECONDS_MAX):
        async with open_node(tmp_path / "data", bootstrap=True) as store:
            await store.put("key", "before")

            with pytest.raises(WrongContext, match="trio loop") as caught:
                await trio.to_thread.run_sync(use, store)

            assert isinstance(caught.value, OperationFailed)  # The call was certainly not sent.
            assert (await store.get("key")).record.value == b"before"  # type: ignore[union-attr]


async def test_a_client_is_entered_once() -> None:
    client = Client(["127.0.0.1:1"])
    async with client:
        with pytest.raises(WrongContext, match="entered once"):
            await client.__aenter__()
    with pytest.raises(WrongContext, match="entered once"):
        await client.__aenter__()


def test_a_node_is_not_opened_outside_of_trio(tmp_path: Path) -> None:
    async def embed() -> None:
        async with open_node(tmp_path / "data", bootstrap=True):
            pass

    with pytest.raises(WrongContext, match="needs a running trio loop"):
        asyncio.run(embed())
    assert not (tmp_path / "data").exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_client_that_was_entered_before_a_fork_is_the_parents_alone(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FORK, str(tmp_path / "data")],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )

    assert (ended.returncode, "forked after the client was entered" in ended.stdout) == (42, True), ended.stderr

"""Garbage collection in a member's process. The settings are global, so each test runs in a process of its own."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from harness.cluster.ports import free_ports
from kvstore import Client, open_node
from kvstore.cli.daemon import process
from kvstore.member.config import MemberConfig
from kvstore.store import gc_tuning
from raft import Member

TIMEOUT_SECONDS = 60
CALLS, TASKS = 1_280, 32

A_MACHINE = """
import gc
from kvstore.protocol.commands import Put, encode_command
from kvstore.store.machine import KvMachine
from raft import Entry, EntryKind, encode_batch

machine = KvMachine()

def put(first, count):
    batch = [encode_command(Put(b"%06d" % number, b"v")) for number in range(first, first + count)]
    machine.apply(Entry(1, 1, EntryKind.COMMANDS, encode_batch(0, batch)))

def is_walked(thing):
    return any(each is thing for each in gc.get_objects())

"""


def in_a_process(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", A_MACHINE + script], capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_collection_walks_the_records_again_and_again_if_nothing_is_done_about_it() -> None:
    """`gc_tuning` exists because a full collection untracks the map, but the next write tracks it again, in the
    youngest generation."""
    in_a_process("""
put(0, 1000)
gc.collect()
records = machine._store.records.part_of(b"000500")
assert not gc.is_tracked(records)
put(500, 1)
assert any(each is records for each in gc.get_objects(generation=0))
""")


def test_a_state_that_is_spared_is_never_walked_again_however_it_changes() -> None:
    in_a_process("""
from kvstore.store import gc_tuning
with gc_tuning.suspended():
    put(0, 5000)
gc_tuning.freeze_state()
records, keys = machine._store.records.part_of(b"000000"), machine._store.keys._blocks[0]
for first in (0, 2500, 6000):
    put(first, 2000)
    gc.collect()
    assert not is_walked(records)
    assert not is_walked(keys)
assert gc.is_tracked(records)
""")


def test_what_a_collection_took_long_to_walk_is_walked_only_once() -> None:
    """For example, the collector walks a restored state only once after it has replaced the first state."""
    in_a_process("""
from kvstore.store import gc_tuning
gc_tuning.freeze_state()
lasting = [[] for _ in range(10)]
gc.collect()
assert is_walked(lasting)
gc_tuning.LONG_NS = -1
gc.collect()
assert not is_walked(lasting)
""")


def test_a_collection_still_finds_new_cycles_after_that() -> None:
    in_a_process("""
import weakref
from kvstore.store import gc_tuning
gc_tuning.freeze_state()
class Thing: pass
thing = Thing(); thing.itself = thing
gone = weakref.ref(thing)
del thing
gc.collect()
assert gone() is None
""")


def test_a_library_leaves_the_collector_of_its_program_alone() -> None:
    in_a_process("""
import kvstore, kvstore.embedded, kvstore.store.gc_tuning
assert gc.isenabled() and not gc.get_freeze_count()
assert not [each for each in gc.callbacks if "kvstore" in getattr(each, "__module__", "")]
""")


def test_collections_go_on_when_a_state_could_not_be_loaded() -> None:
    def load() -> None:
        with gc_tuning.suspended():
            assert not gc.isenabled()
            raise OSError

    with pytest.raises(OSError):
        load()
    assert gc.isenabled()


async def test_a_serving_process_spares_its_state_once_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state is frozen before the first collection. Otherwise this collection would walk the whole state, which
    takes 0.7 s for 10⁶ keys."""
    spared, announced = trio.Event(), trio.Event()

    def spare() -> None:
        assert not gc.isenabled()
        spared.set()

    monkeypatch.setattr(gc_tuning, "freeze_state", spare)
    monkeypatch.setattr(process, "_announce", lambda *_: announced.set())
    with trio.fail_after(TIMEOUT_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(process._serve, MemberConfig(folder=tmp_path / "data", bootstrap=True), None, None)
            await announced.wait()
            assert spared.is_set()
            assert gc.isenabled()
            nursery.cancel_scope.cancel()


async def test_what_a_cluster_is_asked_leaves_nothing_to_the_collector(tmp_path: Path) -> None:
    """A reference cycle stays until a collection finds it. Until then it keeps all bytes that were written."""
    with trio.fail_after(TIMEOUT_SECONDS):
        async with a_cluster(tmp_path) as addresses, Client(addresses) as client:
            await ask(client, CALLS // 4)  # After these calls, even the slow connections are open.
            gc.collect()
            gc.disable()
            try:
                await ask(client, CALLS)
                assert gc.collect() < CALLS // 100
            finally:
                gc.enable()


@asynccontextmanager
async def a_cluster(folder: Path) -> AsyncIterator[list[str]]:
    """Run three members in this process, with real files and sockets. Yields their client addresses."""
    ports = free_ports(6)
    members = tuple(Member(f"s{i}", f"127.0.0.1:{ports[i]}", f"127.0.0.1:{ports[i + 3]}") for i in range(3))

    async def serve(node_id: str, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with open_node(folder / node_id, node_id=node_id, members=members, bootstrap=True):
            task_status.started()
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as starting:
            for member in members:
                starting.start_soon(nursery.start, serve, member.node_id)
        yield [member.client_address for member in members]
        nursery.cancel_scope.cancel()


async def ask(client: Client, calls: int) -> None:
    """Puts and gets, many at a time."""

    async def one_task(task: int) -> None:
        for call in range(calls // TASKS):
            await client.put(b"%d-%d" % (task, call % 7), b"value")
            await client.get(b"%d-%d" % (task, call % 7))

    async with trio.open_nursery() as nursery:
        for task in range(TASKS):
            nursery.start_soon(one_task, task)


@pytest.mark.parametrize(
    ("machine", "gather"), [("KvMachine()", True), ("KvMachine(on_applied=gc_tuning.note_allocations)", False)]
)
def test_records_that_replace_others_gather_among_the_young_unless_these_are_walked_now_and_then(
    machine: str, gather: bool
) -> None:
    """A steady load frees as many objects as it makes. So a collection only starts when it has many objects to walk."""
    in_a_process(f"""
from kvstore.store import gc_tuning
machine = {machine}
gc_tuning.freeze_state()
for _ in range(2):
    for first in range(0, 20_000, 200):
        put(first, 200)
assert (len(gc.get_objects(generation=0)) > 3 * gc_tuning.YOUNG_MAX) is {gather}
""")

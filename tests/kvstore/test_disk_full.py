"""Disks without room, from the client down to the files: writes end `busy`, for certain, and are taken again later."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvstore.commands import Get, Put
from kvstore.errors import Busy
from kvstore.protocol import command_request
from kvstore.results import GetResult, PutResult
from tests.kvstore.in_memory import Cluster, SimClient

ROOM = 64 * 1024
VALUE = bytes(8 * 1024)


def fill(cluster: Cluster, client: SimClient, *node_ids: str) -> int:
    """Leave little room on these disks, and put until one is full; how many puts were answered."""
    for node_id in node_ids:
        files = cluster.hosts[node_id].files
        files.bytes_max = files.used_bytes + ROOM
    for count in range(100):
        try:
            client.do(Put(b"k%d" % count, VALUE), seconds=2)
        except Busy:
            return count
    raise AssertionError("the disk never became full")


def value_of(client: SimClient, number: int) -> bytes | None:
    """What is under one of the keys that `fill` puts."""
    answer = client.do(Get(b"k%d" % number))
    assert isinstance(answer, GetResult)
    return answer.record.value if answer.record else None


def test_a_store_of_one_on_a_full_disk_refuses_writes_and_reads_on_and_writes_again_once_there_is_room(
    quick_folder: Path,
) -> None:
    """FORMATS §4: votes and compaction still work on a full disk. §9: what was refused certainly had no effect."""
    cluster = Cluster(quick_folder, 1)
    client = cluster.client()

    count = fill(cluster, client, "s1")

    assert 0 < count <= ROOM // len(VALUE)
    assert [value_of(client, number) for number in range(count)] == [VALUE] * count
    assert value_of(client, count) is None
    cluster.wait(10)  # It looks for room, in vain, and harms nothing.
    with pytest.raises(Busy, match=r"disk of s1 is full.*make room"):
        client.do(Put(b"still", b"full"), seconds=1)

    cluster.hosts["s1"].files.bytes_max = None
    ticket = client.submit(command_request(Put(b"after", VALUE)), seconds=10)
    cluster.wait(5)

    assert isinstance(client.result(ticket), PutResult)
    assert not cluster.hosts["s1"].node.status().is_disk_full


def test_what_was_answered_before_the_disk_was_full_is_there_after_a_crash(quick_folder: Path) -> None:
    cluster = Cluster(quick_folder, 1)
    client = cluster.client()
    count = fill(cluster, client, "s1")

    cluster.kill("s1")
    cluster.start("s1")
    cluster.leader()

    assert [value_of(client, number) for number in range(count)] == [VALUE] * count
    assert value_of(client, count) is None


def test_of_three_one_full_disk_stops_nobody(quick_folder: Path) -> None:
    """A follower without room takes no more commands; the others are a majority. With room it gets them all."""
    cluster = Cluster(quick_folder, 3)
    client = cluster.client()
    client.do(Put(b"first", b"x"))
    leader = cluster.leader()
    full = next(node_id for node_id in cluster.hosts if node_id != leader)
    files = cluster.hosts[full].files
    files.bytes_max = files.used_bytes + ROOM

    for number in range(20):
        assert isinstance(client.do(Put(b"k%d" % number, VALUE)), PutResult)
    cluster.wait(1)
    behind = cluster.hosts[full].node.status()
    files.bytes_max = None
    cluster.wait(5)
    level = cluster.hosts[full].node.status()

    assert behind.is_disk_full
    assert behind.last_index < cluster.hosts[leader].node.core.last_index
    assert not level.is_disk_full
    assert level.last_applied == cluster.hosts[leader].node.core.last_applied
    assert cluster.leader() == leader

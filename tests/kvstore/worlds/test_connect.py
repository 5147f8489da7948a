"""A client from a URL, and a client with the id of its cluster, in each world."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvstore import InvalidAddress, InvalidUrl, StoreError, Tls, Unavailable
from kvstore.connection_url import parse_url
from raft import InvalidConfiguration
from tests.kvstore.worlds.world import WORLDS, World, in_each_world

pytestmark = [pytest.mark.timeout(60)]


@in_each_world
async def test_a_url_names_members_and_a_prefix(world: World, member_address: str, name: str) -> None:
    async with world.connect(f"hwm://{member_address}/{name}?deadline=7.5") as view:
        assert view.deadline_seconds == 7.5
        await view.put("a", "1")
    async with world.connect(f"hwm://{member_address}") as client:
        assert (await client.get(name + "a")).value == b"1"


@in_each_world
async def test_a_client_refuses_members_of_another_cluster(world: World, member_address: str) -> None:
    other = "ab" * 16
    async with world.connect(f"hwm://{member_address}?cluster={other}&deadline=0.5") as client:
        with pytest.raises(Unavailable, match=f"and this client wants {other}"):
            await client.put("a", "1")


@in_each_world
async def test_a_client_takes_members_of_the_cluster_that_it_wants(world: World, member_address: str) -> None:
    async with world.client([member_address]) as client:
        cluster_id = (await client.status()).cluster_id
    for wanted in (cluster_id, cluster_id.hex()):
        async with world.client([member_address], cluster_id=wanted) as client:
            await client.put("a", "1")


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
@pytest.mark.parametrize("cluster_id", [b"short", "xy" * 16, "ab"])
def test_what_is_no_cluster_id_is_refused_at_once(world: World, cluster_id: Any) -> None:
    with pytest.raises(InvalidConfiguration, match="a cluster id has 16 bytes"):
        world.client(["127.0.0.1:1"], cluster_id=cluster_id)


def test_every_part_of_a_url_is_read() -> None:
    found = parse_url(
        "hwm://[::1]:1,s2.example.org:2/a%2Fb/%FF?session=no&cluster=00ff&ca=/ca.pem&cert=c.pem&key=k.pem"
    )

    assert found.endpoints == ("[::1]:1", "s2.example.org:2")
    assert found.prefix == b"a/b/\xff"
    assert found.options == {
        "session": False,
        "cluster_id": "00ff",
        "tls": Tls(ca=Path("/ca.pem"), cert=Path("c.pem"), key=Path("k.pem")),
    }


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("127.0.0.1:7101", "does not begin with hwm://"),
        ("https://127.0.0.1:7101", "does not begin with hwm://"),
        ("hwm:///prefix", "names no member"),
        ("hwm://h:1?colour=green", "there is no parameter 'colour'"),
        ("hwm://h:1?deadline=1&deadline=2", "there twice"),
        ("hwm://h:1?deadline=soon", "a number of seconds above 0"),
        ("hwm://h:1?deadline=0", "a number of seconds above 0"),
        ("hwm://h:1?deadline=nan", "a number of seconds above 0"),
        ("hwm://h:1?session=maybe", "session is yes or no"),
        ("hwm://h:1?cert=c.pem", "needs the authorities"),
        ("hwm://h:1?deadline", "cannot be read"),
        ("hwm://h:1/a#b", "write # in a prefix as %23"),
    ],
)
def test_a_wrong_url_is_refused_with_the_reason(url: str, words: str) -> None:
    with pytest.raises(InvalidUrl, match=words) as caught:
        parse_url(url)
    assert "hwm://host:port" in caught.value.hint
    assert isinstance(caught.value, StoreError)


def test_a_wrong_address_in_a_url_is_named() -> None:
    with pytest.raises(InvalidAddress, match="host"):
        parse_url("hwm://host")

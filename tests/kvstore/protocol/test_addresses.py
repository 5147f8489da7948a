"""The addresses that are accepted, and a client whose member list contains an address that cannot be dialled."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.abc

from kvstore import Client, initial_header
from kvstore.client.pump import dial_tcp
from kvstore.errors import CannotServe, InvalidAddress, Unavailable
from kvstore.member.config import MemberConfig
from kvstore.member.member import RunningMember, run_member
from kvstore.protocol.addresses import parse_address, parse_advertised
from raft import Configuration, Identity, Member, derive_cluster_id
from raft.runtime import InvalidAddress as InvalidPeerAddress
from raft.runtime import parse_address as parse_peer_address
from storage import create_data_folder


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a..b:7104", "empty part"),
        (".a:7104", "empty part"),
        ("a" * 64 + ":7104", "64 bytes"),
        ("a." * 127 + "b:7104", "253"),
        ("é" * 60 + ":7104", "internationalized"),
        ("a b:7104", "character"),
        ("a\n:7104", "cannot be seen"),
        ("local\u00adhost:7104", "cannot be seen"),
        ("[::1:7104", "colon"),
        ("[1.2.3.4]:7104", "brackets"),
        ("[::1%]:7104", "brackets"),
        ("a:" + "0" * 5_000, "not a number"),
    ],
)
def test_a_host_that_no_resolver_takes_is_refused_with_what_is_wrong(text: str, words: str) -> None:
    """A list of members is stored permanently, and every client dials the addresses in the list."""
    with pytest.raises(InvalidAddress, match=words) as refused:
        parse_address(text)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("host", ["hwm_s1", "s1.example.", "bücher.example", "127.1", "[fe80::1%eth0]", "[::1]"])
def test_hosts_that_resolvers_find_are_taken(host: str) -> None:
    """A host may be a container's name with underscores, end in a dot, or contain a zone."""
    assert parse_advertised(f"{host}:7101") == (host.strip("[]"), 7101)


@pytest.mark.parametrize(
    ("text", "words"),
    [("0:7001", "listen"), ("０.0.0.0:7001", "listen"), ("[0:0::0]:7001", "listen"), ("::1:7001", "brackets")],
)
def test_what_no_peer_could_dial_is_not_advertised(text: str, words: str) -> None:
    """The system reads `0` as 0.0.0.0. An IPv6 address of a peer must be in brackets."""
    with pytest.raises(InvalidAddress, match=words):
        parse_advertised(text)


@pytest.mark.parametrize(
    ("text", "of_a_peer", "of_a_client"),
    [
        ("s1.example:7101", True, True),
        ("[::1]:7101", True, True),
        ("::1:7101", False, True),
        ("[s1.example]:7101", True, False),
        ("a..b:7101", True, False),
        ("s1:007101", True, False),
        ("s1:" + "0" * 4_301, False, False),
        ("[]:7101", False, False),
        ("[:7101", True, False),
        (":7101", False, False),
        ("s1", False, False),
        ("s1:", False, False),
        ("s1:65536", False, False),
        ("s1:٣", False, False),
    ],
)
def test_peers_and_clients_split_an_address_alike_and_differ_in_what_they_take(
    text: str, of_a_peer: bool, of_a_client: bool
) -> None:
    """A peer's address may come from a configuration of any build, so more addresses are accepted for peers. A client
    address is checked before it is stored."""
    taken: list[tuple[str, int] | None] = []
    for parse, refusal in ((parse_peer_address, InvalidPeerAddress), (parse_address, InvalidAddress)):
        try:
            taken.append(parse(text))
        except refusal:
            taken.append(None)

    assert [found is not None for found in taken] == [of_a_peer, of_a_client]
    assert len({*taken} - {None}) <= 1


async def test_a_member_list_with_a_host_that_cannot_be_dialled_does_no_harm_to_clients(tmp_path: Path) -> None:
    """An older build accepted lists with such a host, and data folders still contain these lists."""
    own = Member("s1", "127.0.0.1:1", "127.0.0.1:2")
    configuration = Configuration((own,), learners=(Member("s4", "127.0.0.1:3", "a..b:7104"),))
    identity = Identity(
        cluster_id=derive_cluster_id("", configuration), group_id=0, node_id="s1", incarnation_id=os.urandom(16)
    )
    folder = tmp_path / "data"
    create_data_folder(folder, identity=identity, configuration=configuration, machine_header=initial_header())
    config = MemberConfig(folder=folder, listen_client="127.0.0.1:0", listen_peer="127.0.0.1:0")
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            member: RunningMember = await nursery.start(partial(run_member, config))
            async with Client([member.client_address], deadline_seconds=20) as client:
                await client.put("a", "b")
                with pytest.raises(Unavailable, match="empty part"):
                    await client.status("s4", deadline_seconds=1)
                found = await client.cluster_status(deadline_seconds=2)
                await client.put("a", "c")
            nursery.cancel_scope.cancel()

    assert isinstance(found["s4"], InvalidAddress)  # `hwm status` shows this error for s4.


class _Picky(trio.abc.HostnameResolver):
    """A resolver that accepts fewer names than our check."""

    async def getaddrinfo(self, *_: object, **__: object) -> list[tuple[object, ...]]:  # type: ignore[override]
        raise UnicodeError("label too long")

    async def getnameinfo(self, *_: object) -> tuple[str, str]:
        raise AssertionError


async def test_a_resolver_that_cannot_take_a_name_makes_it_an_address_that_is_not_there(tmp_path: Path) -> None:
    """Both connecting and listening report such a name as a bad address, not as a bug of this program."""
    previous = trio.socket.set_custom_hostname_resolver(_Picky())
    try:
        with pytest.raises(InvalidAddress, match="label too long"):
            await dial_tcp("example.org:7101")
        config = MemberConfig(folder=tmp_path / "data", bootstrap=True, listen_client="example.org:7101", insecure=True)
        with pytest.raises(BaseExceptionGroup) as refused:
            async with trio.open_nursery() as nursery:
                await nursery.start(partial(run_member, config))
        assert refused.group_contains(CannotServe, match="label too long")
    finally:
        trio.socket.set_custom_hostname_resolver(previous)

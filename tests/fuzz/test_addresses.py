"""Addresses and member specifications, as people type them and as strangers send them."""

from __future__ import annotations

import socket
from contextlib import suppress
from random import Random

import click
import idna
import pytest

from kvstore.cli.common import MemberType
from kvstore.errors import InvalidAddress
from kvstore.protocol.addresses import parse_address, parse_advertised
from kvstore.protocol.membership import read_change
from raft import ChangeRefused, Member
from tests.fuzz.campaign import RecordProperty, campaign, sizes
from tests.fuzz.structures import Structures

VALID = (
    "127.0.0.1:7101", "localhost:0", "[::1]:7101", "[fe80::1%eth0]:7001", "[::ffff:1.2.3.4]:65535", "::1:7101",
    "s1.example.org.:7101", "hwm_s1:7101", "bücher.example:7101", "例え.テスト:1", "1.2:3", "*:7101",
)  # fmt: skip
PARTS = (
    ".", "..", ":", "[", "]", "%", "%eth0", "-", "_", " ", "\t", "\n", "\x00", "\x1b", "\u202e", "\u3002", "\u00ad",
    "ß", "½", "é", "xn--", "xn--a", "0", "0x7f", "127", "a", "A", "a" * 63, "a" * 64, "a." * 126, "a." * 127,
    "\udcff", "\u200d", "0" * 5_000, "65536", "９", "=", "/", "*", "::", "é" * 60, "٠",
)  # fmt: skip


def _text(random: Random, structures: Structures) -> str:
    text = random.choice((*VALID, ""))
    for _ in range(random.randrange(4)):
        place = random.randrange(len(text) + 1)
        match random.randrange(4):
            case 0:
                text = text[:place] + random.choice(PARTS) + text[place:]
            case 1:
                text = text[:place] + text[place + 1 :]
            case 2:
                text = random.choice(PARTS) + text[place:]
            case _:
                changed = structures.changed_bytes(text.encode("utf-8", "surrogatepass"))
                text = changed.decode("utf-8", "surrogateescape")
    return text


def _assert_resolver_takes(text: str) -> None:
    """Treat a host as trio does: first read it as a number, then encode it as ASCII. No name server is queried."""
    host, port = parse_address(text)
    try:
        socket.getaddrinfo(host, port, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        ascii_form = host.encode("ascii") if host.isascii() else idna.encode(host, uts46=True)
        assert 0 < len(ascii_form) <= 254, text
    assert 0 <= port <= 65535
    assert host.isprintable(), text


@sizes
def test_an_address_is_refused_as_one_or_can_be_given_to_a_resolver(
    record_property: RecordProperty, inputs: int
) -> None:
    """A member list is stored permanently, so it must not contain a host that fails in every client's resolver."""
    accepted = 0
    with campaign(record_property, surface="addresses", seed=7101, inputs=inputs) as random:
        structures = Structures(random)
        for number in range(inputs):
            text = _text(random, structures)
            for parse in (parse_address, parse_advertised):
                with suppress(InvalidAddress):
                    parse(text)
                    accepted += 1
                    _assert_resolver_takes(text)
            if number % 4 == 0:
                _specify_member(text, random)
    assert inputs // 10 < accepted < 2 * inputs


def _specify_member(text: str, random: Random) -> None:
    """Use the text as an address on a command line and in a request to change the members."""
    spec = random.choice((f"s4={text}/127.0.0.1:7104", f"s4=127.0.0.1:7004/{text}", f"{text}=a:1/b:1", text))
    try:
        typed = MemberType().convert(spec, None, None)
    except click.BadParameter:
        pass
    else:
        _assert_member(typed)
    try:
        change = read_change([[["s4", text, "127.0.0.1:7104", b""]], [], [], [["s5", "127.0.0.1:7005", text, b""]]])
    except ChangeRefused:
        return
    for member in (*change.add, *change.update):
        _assert_member(member)


def _assert_member(member: Member) -> None:
    for address in (member.peer_address, member.client_address):
        _assert_resolver_takes(address)


@pytest.mark.parametrize("text", VALID)
def test_valid_addresses_are_valid(text: str) -> None:
    """The campaign above needs valid addresses that it can change."""
    parse_address(text)

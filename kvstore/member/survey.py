"""The survey of the client addresses of all names, before a member without data joins or begins a cluster.

The member reads only the hello of each address. The hello names the cluster, and needs no password.
"""

from __future__ import annotations

import enum
import errno
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import trio

from kvstore.client.dial import dialer_of
from kvstore.client.pump import Dialer, innermost_message
from kvstore.errors import InvalidAddress
from kvstore.member.named import NamedConfig, Waiting
from kvstore.protocol.addresses import parse_address
from kvstore.protocol.messages import encode_client_hello
from raft import FRAME_BYTES_MAX_CLIENT, FrameSplitter, ProtocolError, Refusal, decode_hello, frame

NO_DATA = "no_data"
"""The code of the refusal by which a member without data answers at its client port."""

LOOK_SECONDS_MAX = 3.0
"""The time in which an address must answer."""

HELLO_READ_BYTES = 4096

_NO_SUCH_NAME = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}
"""The answers of the resolver that say for certain that a name does not exist, or has no address. After any other error
of the resolver, the name may exist."""


class Finding(enum.Enum):
    """The answer of an address in a survey."""

    CLUSTER = "belongs to a cluster"
    BLANK = "has no data"
    ABSENT = "does not exist"
    SILENT = "does not answer"


@dataclass(frozen=True, slots=True)
class Found:
    """The finding at one address, the id of the cluster there (16 bytes; empty if none is known), and details for the
    log."""

    address: str
    finding: Finding
    cluster_id: bytes = b""
    details: str = ""

    def __str__(self) -> str:
        cluster = f" {self.cluster_id.hex()}" if self.cluster_id else ""
        return f"{self.address} {self.finding.value}{cluster}" + (f" ({self.details})" if self.details else "")


@dataclass(frozen=True, slots=True)
class Join:
    """There is a cluster to join."""

    cluster_id: bytes


@dataclass(frozen=True, slots=True)
class Begin:
    """There is no cluster, and this member may begin one."""


def decide(named: NamedConfig, found: Sequence[Found]) -> Join | Begin | Waiting:
    """Return what a member without data may do, according to the findings at all other addresses.

    An address that does not answer is never treated as absent, because its member may belong to a cluster.
    """
    clusters = sorted({each.cluster_id for each in found if each.finding is Finding.CLUSTER})
    if named.cluster_id:
        if named.cluster_id in clusters:
            return Join(named.cluster_id)
        return Waiting(f"no member of cluster {named.cluster_id.hex()} answers, and --cluster-id allows no other one")
    if len(clusters) > 1:
        ids = " and ".join(each.hex() for each in clusters)
        return Waiting(f"members of the clusters {ids} answer: name the right one with --cluster-id")
    if clusters:
        return Join(clusters[0])
    if not named.may_begin:
        reason = f"only {named.endpoints[0]} may begin one" if named.begin_with else "--begin-with is not given"
        return Waiting(f"no cluster is found, and {reason}")
    blank = [each for each in found if each.finding is Finding.BLANK]
    silent = [each.address for each in found if each.finding is Finding.SILENT]
    if silent:
        return Waiting(f"{', '.join(silent)} may belong to a cluster, and must answer before another one begins")
    if len(blank) + 1 < named.begin_with:
        return Waiting(f"{len(blank) + 1} of {named.begin_with} members without data are here (--begin-with)")
    return Begin()


async def survey(named: NamedConfig) -> list[Found]:
    """Look at the addresses of all other names at the same time. Takes at most LOOK_SECONDS_MAX.

    Raises UnusableCertificates.
    """
    dial = dialer_of(named.tls)
    found = dict[str, Found]()

    async def look(address: str) -> None:
        found[address] = Found(address, Finding.SILENT, details=f"within {LOOK_SECONDS_MAX:g} s")
        with trio.move_on_after(LOOK_SECONDS_MAX):
            found[address] = await _look(address, dial)

    async with trio.open_nursery() as nursery:
        for address in named.others:
            nursery.start_soon(look, address)
    return [found[address] for address in named.others]


async def _look(address: str, dial: Dialer) -> Found:
    try:
        host, port = parse_address(address)
        await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
    except socket.gaierror as error:
        finding = Finding.ABSENT if error.errno in _NO_SUCH_NAME else Finding.SILENT
        return Found(address, finding, details=innermost_message(error))
    try:
        async with await dial(address) as stream:
            return await _greet(address, stream)
    except (OSError, InvalidAddress, trio.BrokenResourceError, ProtocolError) as error:
        return Found(address, Finding.SILENT, details=innermost_message(error))


async def _greet(address: str, stream: trio.abc.Stream) -> Found:
    await stream.send_all(frame(encode_client_hello()))
    splitter = FrameSplitter(FRAME_BYTES_MAX_CLIENT)
    while True:
        data = await stream.receive_some(HELLO_READ_BYTES)
        if not data:
            raise OSError(errno.ECONNRESET, "it closed the connection without a word")
        for body in splitter.feed(data):
            hello = decode_hello(body)
            if not isinstance(hello, Refusal):
                return Found(address, Finding.CLUSTER, hello.cluster_id)
            finding = Finding.BLANK if hello.code == NO_DATA else Finding.SILENT
            return Found(address, finding, details=hello.text)

"""The sockets on which one member listens: for clients, for peers and for metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import trio

from kvstore.errors import StoreError
from kvstore.member.config import MemberConfig
from kvstore.protocol.addresses import parse_address
from raft import Member
from raft.runtime import is_loopback


class CannotServe(StoreError):
    """A port could not be opened. `purpose`: clients, peers or metrics."""

    def __init__(self, purpose: str, address: str, reason: str) -> None:
        super().__init__(purpose, address, reason)
        self.purpose, self.address, self.reason = purpose, address, reason

    def __str__(self) -> str:
        return f"cannot listen for {self.purpose} on {self.address}: {self.reason}"

    @property
    def hint(self) -> str:
        option = {"peers": "--listen-peer", "metrics": "--metrics"}.get(self.purpose, "--listen-client")
        return f"stop what uses the port, or name another address with {option}"


class ReachableByOthers(StoreError):
    """A port without TLS would be reachable from other machines."""

    def __init__(self, purpose: str, address: str) -> None:
        super().__init__(purpose, address)
        self.purpose, self.address = purpose, address

    def __str__(self) -> str:
        return (
            f"the port for {self.purpose} would listen on {self.address}, where other machines may reach it, without "
            "encryption or authentication"
        )

    @property
    def hint(self) -> str:
        option = "--peer-cert and --peer-ca" if self.purpose == "peers" else "--tls-cert"
        return f"give it certificates ({option}), listen on 127.0.0.1, or say --insecure if the network is yours alone"


@dataclass(slots=True)
class Listeners:
    """The listening sockets of one member, by purpose."""

    clients: list[trio.SocketListener] = field(default_factory=list)
    peers: list[trio.SocketListener] = field(default_factory=list)
    metrics: list[trio.SocketListener] = field(default_factory=list)


async def open_listeners(config: MemberConfig, own: Member, *, has_peers: bool) -> Listeners:
    """Open all listeners of a member. If a listener cannot be opened, no listener stays open. Raises CannotServe,
    ReachableByOthers."""
    listeners = Listeners()
    try:
        if has_peers or config.listen_when_alone:
            listeners.clients = await _listen("clients", config.listen_client or own.client_address, config)
        if has_peers:
            listeners.peers = await _listen("peers", config.listen_peer or own.peer_address, config)
        if config.metrics is not None:
            listeners.metrics = await _listen("metrics", config.metrics, config)
    except BaseException:
        await _close([*listeners.clients, *listeners.peers])
        raise
    return listeners


async def _listen(purpose: str, address: str, config: MemberConfig) -> list[trio.SocketListener]:
    host, number = parse_address(address or "127.0.0.1:0")
    has_tls = config.tls is not None and config.tls.protects(purpose)
    if not config.insecure and not has_tls and not is_loopback(host):
        raise ReachableByOthers(purpose, address)
    try:
        listeners = await trio.open_tcp_listeners(number, host=host)
    except OSError as error:
        raise CannotServe(purpose, address, (error.strerror or str(error)).lower()) from error
    except ValueError as error:  # For example, a UnicodeError for a name that the resolver cannot encode.
        raise CannotServe(purpose, address, f"its host cannot be looked up: {error}") from error
    await _close(listeners[1:] if number == 0 else [])  # With port 0, each address of a name would get another port.
    return listeners[:1] if number == 0 else listeners


async def _close(listeners: Sequence[trio.SocketListener]) -> None:
    for listener in listeners:
        await listener.aclose()


def address_of(listeners: Sequence[trio.SocketListener]) -> str:
    if not listeners:
        return ""
    host, number = listeners[0].socket.getsockname()[:2]
    return f"[{host}]:{number}" if ":" in host else f"{host}:{number}"

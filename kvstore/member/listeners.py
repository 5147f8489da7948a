"""The sockets on which one member listens: for clients, for peers and for metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import trio

from kvstore.errors import CannotServe, ReachableByOthers
from kvstore.member.config import MemberConfig
from kvstore.protocol.addresses import parse_address
from raft import Member
from raft.runtime import is_loopback


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


def check_reach(config: MemberConfig, own: Member | None) -> None:
    """Raise ReachableByOthers if a port of the configuration would be reachable by others without TLS. `own`: this
    member, as the configuration describes it; None if only its folder does. This check needs no data folder, so a
    refused start leaves no new folder behind."""
    given = {"clients": config.listen_client, "peers": config.listen_peer, "metrics": config.metrics}
    if own is not None and config.listen_when_alone:
        given["clients"], given["peers"] = given["clients"] or own.client_address, given["peers"] or own.peer_address
    for purpose, address in given.items():
        if address:
            _check_reach(purpose, address, config)


def _check_reach(purpose: str, address: str, config: MemberConfig) -> None:
    has_tls = config.tls is not None and config.tls.protects(purpose)
    if not config.insecure and not has_tls and not is_loopback(parse_address(address or "127.0.0.1:0")[0]):
        raise ReachableByOthers(purpose, address)


async def _listen(purpose: str, address: str, config: MemberConfig) -> list[trio.SocketListener]:
    host, number = parse_address(address or "127.0.0.1:0")
    _check_reach(purpose, address, config)
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

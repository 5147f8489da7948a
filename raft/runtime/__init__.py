"""The code that runs a `raft.Node` on trio: it moves bytes, fires timers and passes on completions. The node makes all
decisions.

Other packages import from `raft.runtime`, and not from its submodules.
"""

from __future__ import annotations

from raft.runtime.accepting import Acceptor, descriptor_limit
from raft.runtime.addresses import is_loopback, parse_address
from raft.runtime.completions import CompletionQueue
from raft.runtime.connection_log import HELLO_REFUSALS
from raft.runtime.driver import Application, Driver, now_ns
from raft.runtime.errors import CannotListen, ConnectionRefusedByPeer, InsecureAddress, InvalidAddress
from raft.runtime.fast_paths import FAST_PATHS
from raft.runtime.inbound_places import CONNECTIONS_MAX
from raft.runtime.metrics import Histogram, MeasuredDriver
from raft.runtime.outbound import OUTBOUND_BYTES_MAX
from raft.runtime.peer_routes import PeerConnections
from raft.runtime.sockets import receive_at_once, send_at_once
from raft.runtime.tls.contexts import PROTOCOL_CLIENT, PROTOCOL_HTTP, PROTOCOL_HTTP2
from raft.runtime.tls.credentials import (
    REREAD_SECONDS,
    Credentials,
    caller_credentials,
    peer_credentials,
    port_credentials,
)
from raft.runtime.tls.errors import HANDSHAKE_REFUSALS, TlsFailed, UnusableTlsFiles
from raft.runtime.tls.handshakes import HANDSHAKE_SECONDS_MAX, Handshakes, MemberStream, call
from raft.runtime.tls.session import TlsSession
from raft.runtime.tls.stream import ALERT_SECONDS_MAX, TlsStream
from raft.runtime.transport import PeerEvents, Transport

__all__ = [
    "ALERT_SECONDS_MAX",
    "CONNECTIONS_MAX",
    "FAST_PATHS",
    "HANDSHAKE_REFUSALS",
    "HANDSHAKE_SECONDS_MAX",
    "HELLO_REFUSALS",
    "OUTBOUND_BYTES_MAX",
    "PROTOCOL_CLIENT",
    "PROTOCOL_HTTP",
    "PROTOCOL_HTTP2",
    "REREAD_SECONDS",
    "Acceptor",
    "Application",
    "CannotListen",
    "CompletionQueue",
    "ConnectionRefusedByPeer",
    "Credentials",
    "Driver",
    "Handshakes",
    "Histogram",
    "InsecureAddress",
    "InvalidAddress",
    "MeasuredDriver",
    "MemberStream",
    "PeerConnections",
    "PeerEvents",
    "TlsFailed",
    "TlsSession",
    "TlsStream",
    "Transport",
    "UnusableTlsFiles",
    "call",
    "caller_credentials",
    "descriptor_limit",
    "is_loopback",
    "now_ns",
    "parse_address",
    "peer_credentials",
    "port_credentials",
    "receive_at_once",
    "send_at_once",
]

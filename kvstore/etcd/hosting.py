"""What a program needs to serve etcd's clients without the trio shell, and to make and read their messages.

Such a program moves the bytes, keeps the time, and implements `Facts` and `Backend`. The simulator does this. The names
below are the public interface of this chapter.
"""

from __future__ import annotations

from kvstore.client.watches.watch_stream import WatchStream
from kvstore.etcd.backend import Backend, Context, Facts
from kvstore.etcd.call import TURN_SECONDS, TURNS_PER_TICK, EtcdCall
from kvstore.etcd.coroutines import Abort, Resume
from kvstore.etcd.errors import COMPACTED, FUTURE_REVISION, Status, unimplemented
from kvstore.etcd.fast_calls import CallBounds
from kvstore.etcd.grpc import GrpcConnection
from kvstore.etcd.handlers import begin
from kvstore.etcd.http2.engine import EngineConnection
from kvstore.etcd.member_facts import MemberFacts
from kvstore.etcd.range_gate import RangeGate
from kvstore.etcd.renewer import Renewer
from kvstore.etcd.schema import METHODS, Message, Method, make, message_class
from kvstore.etcd.services.watch import Tick
from kvstore.server.direct_requests import DirectRequests

__all__ = [
    "COMPACTED",
    "FUTURE_REVISION",
    "METHODS",
    "TURNS_PER_TICK",
    "TURN_SECONDS",
    "Abort",
    "Backend",
    "CallBounds",
    "Context",
    "DirectRequests",
    "EngineConnection",
    "EtcdCall",
    "Facts",
    "GrpcConnection",
    "MemberFacts",
    "Message",
    "Method",
    "RangeGate",
    "Renewer",
    "Resume",
    "Status",
    "Tick",
    "WatchStream",
    "begin",
    "make",
    "message_class",
    "unimplemented",
]

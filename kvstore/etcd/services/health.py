"""The health service of gRPC: whether this member serves."""

from __future__ import annotations

from kvstore.etcd.backend import Context
from kvstore.etcd.errors import EtcdError, Status
from kvstore.etcd.schema import METHODS, Message, make
from kvstore.etcd.services.watch import Tick

_SERVING, _NOT_SERVING = 1, 2


async def handle_check(context: Context, asked: Message) -> Message:
    """Answer a Check."""
    _check_service(asked.service)
    return make("grpc.health.v1.HealthCheckResponse", status=_status(context))


async def handle_health_watch(context: Context) -> None:
    """Serve a Watch of the health: its present state, and each change."""
    call = context.call
    asked = await call.inbox.get()
    if asked is None:
        return
    _check_service(asked.service)
    call.wants_ticks = True
    told = None
    while True:
        if told != _status(context):
            told = _status(context)
            call.send(make("grpc.health.v1.HealthCheckResponse", status=told))
        while not isinstance(await call.inbox.get(), Tick):
            pass


def _status(context: Context) -> int:
    return _SERVING if context.facts.readiness_problem is None else _NOT_SERVING


def _check_service(name: str) -> None:
    if name and name not in {method.service for method in METHODS.values()}:
        raise EtcdError(Status.NOT_FOUND, "unknown service")

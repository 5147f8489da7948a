"""The handler of each method, and what is the same for all calls: how a handler begins, and how it ends."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from kvstore.errors import AccessDenied, StoreError, Unauthenticated
from kvstore.etcd.backend import Context
from kvstore.etcd.call import EtcdCall
from kvstore.etcd.coroutines import RunningHandler
from kvstore.etcd.errors import INVALID_TOKEN, EtcdError, Status, error_of
from kvstore.etcd.schema import METHODS, Message
from kvstore.etcd.services import (
    auth,
    cluster,
    coordination,
    health,
    kv,
    lease,
    maintenance,
    reflection,
    snapshot,
    watch,
)

logger = logging.getLogger("kvstore.etcd")

UnaryHandler = Callable[[Context, Message], Awaitable[Message | None]]
StreamHandler = Callable[[Context], Awaitable[None]]

UNARY: dict[str, UnaryHandler] = {
    "/etcdserverpb.KV/Range": kv.handle_range,
    "/etcdserverpb.KV/Put": kv.handle_put,
    "/etcdserverpb.KV/DeleteRange": kv.handle_delete_range,
    "/etcdserverpb.KV/Txn": kv.handle_txn,
    "/etcdserverpb.KV/Compact": kv.handle_compact,
    "/etcdserverpb.Lease/LeaseGrant": lease.handle_grant,
    "/etcdserverpb.Lease/LeaseRevoke": lease.handle_revoke,
    "/etcdserverpb.Lease/LeaseTimeToLive": lease.handle_time_to_live,
    "/etcdserverpb.Lease/LeaseLeases": lease.handle_leases,
    "/etcdserverpb.Cluster/MemberAdd": cluster.handle_add,
    "/etcdserverpb.Cluster/MemberRemove": cluster.handle_remove,
    "/etcdserverpb.Cluster/MemberUpdate": cluster.handle_update,
    "/etcdserverpb.Cluster/MemberList": cluster.handle_list,
    "/etcdserverpb.Cluster/MemberPromote": cluster.handle_promote,
    "/etcdserverpb.Maintenance/Alarm": maintenance.handle_alarm,
    "/etcdserverpb.Maintenance/Status": maintenance.handle_status,
    "/etcdserverpb.Maintenance/Defragment": maintenance.handle_defragment,
    "/etcdserverpb.Maintenance/Hash": maintenance.handle_hash,
    "/etcdserverpb.Maintenance/HashKV": maintenance.handle_hash_kv,
    "/etcdserverpb.Maintenance/MoveLeader": maintenance.handle_move_leader,
    "/etcdserverpb.Maintenance/Downgrade": maintenance.handle_downgrade,
    "/etcdserverpb.Auth/AuthEnable": auth.handle_enable,
    "/etcdserverpb.Auth/AuthDisable": auth.handle_disable,
    "/etcdserverpb.Auth/AuthStatus": auth.handle_status,
    "/etcdserverpb.Auth/Authenticate": auth.handle_authenticate,
    "/etcdserverpb.Auth/UserAdd": auth.handle_user_add,
    "/etcdserverpb.Auth/UserGet": auth.handle_user_get,
    "/etcdserverpb.Auth/UserList": auth.handle_user_list,
    "/etcdserverpb.Auth/UserDelete": auth.handle_user_delete,
    "/etcdserverpb.Auth/UserChangePassword": auth.handle_change_password,
    "/etcdserverpb.Auth/UserGrantRole": auth.handle_user_grant,
    "/etcdserverpb.Auth/UserRevokeRole": auth.handle_user_revoke,
    "/etcdserverpb.Auth/RoleAdd": auth.handle_role_add,
    "/etcdserverpb.Auth/RoleGet": auth.handle_role_get,
    "/etcdserverpb.Auth/RoleList": auth.handle_role_list,
    "/etcdserverpb.Auth/RoleDelete": auth.handle_role_delete,
    "/etcdserverpb.Auth/RoleGrantPermission": auth.handle_role_grant,
    "/etcdserverpb.Auth/RoleRevokePermission": auth.handle_role_revoke,
    "/v3lockpb.Lock/Lock": coordination.handle_lock,
    "/v3lockpb.Lock/Unlock": coordination.handle_unlock,
    "/v3electionpb.Election/Campaign": coordination.handle_campaign,
    "/v3electionpb.Election/Proclaim": coordination.handle_proclaim,
    "/v3electionpb.Election/Leader": coordination.handle_leader,
    "/v3electionpb.Election/Resign": coordination.handle_resign,
    "/grpc.health.v1.Health/Check": health.handle_check,
}

STREAMS: dict[str, StreamHandler] = {
    "/etcdserverpb.Watch/Watch": watch.handle_watch,
    "/etcdserverpb.Lease/LeaseKeepAlive": lease.handle_keep_alive,
    "/etcdserverpb.Maintenance/Snapshot": snapshot.handle_snapshot,
    "/v3electionpb.Election/Observe": coordination.handle_observe,
    "/grpc.health.v1.Health/Watch": health.handle_health_watch,
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": reflection.handle_reflection,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": reflection.handle_reflection,
}

assert set(UNARY) | set(STREAMS) == set(METHODS), set(METHODS) ^ (set(UNARY) | set(STREAMS))


def begin(context: Context) -> None:
    """Start the handler of a call."""
    call = context.call
    unary = UNARY.get(call.method.path)
    coroutine = STREAMS[call.method.path](context) if unary is None else unary(context, call.inbox.take())
    call.handler = RunningHandler(coroutine, partial(_end, call))  # type: ignore[arg-type]
    call.handler.start()


def _end(call: EtcdCall[Any], response: Message | None, error: BaseException | None) -> None:
    try:
        if response is not None:
            call.answer(response)
        else:
            _finish(call, error)
    except Exception:  # This function runs in tasks of the whole port, which must go on.
        logger.exception("the end of a call of %s met an unexpected error", call.method.path)


def _finish(call: EtcdCall[Any], error: BaseException | None) -> None:
    if error is None:
        call.finish(None)
    elif isinstance(error, Unauthenticated) and call.token:
        call.finish(INVALID_TOKEN)
    elif isinstance(error, EtcdError | StoreError | AccessDenied):
        call.finish(error_of(error))
    else:
        logger.error("a call of %s met an unexpected error", call.method.path, exc_info=error)
        words = f"etcdserver: internal error of this member: {type(error).__name__}; its log has the details"
        call.finish(EtcdError(Status.INTERNAL, words))

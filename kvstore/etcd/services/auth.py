"""The service Auth: users, roles and passwords. The leader judges all of it, by the rights of the caller."""

from __future__ import annotations

from functools import partial

from kvstore.access import calls
from kvstore.access.requests import RoleView, UserView
from kvstore.access.state import ROOT
from kvstore.errors import AccessReason, AccessRefused
from kvstore.etcd.backend import Context
from kvstore.etcd.coroutines import Wait
from kvstore.etcd.errors import EtcdError, Status, invalid, unimplemented
from kvstore.etcd.schema import Message, make
from kvstore.etcd.services.kv import bounds_of
from kvstore.protocol.access_commands import (
    AccessCommand,
    AuthDisable,
    Right,
    RoleAdd,
    RoleGrant,
    RoleRemove,
    RoleRevoke,
    UserGrant,
    UserRemove,
    UserRevoke,
)

_RIGHTS = (Right.READ, Right.WRITE, Right.READ | Right.WRITE)
"""The rights of each type of permission in etcd."""

_HASHES = "etcdserver: a hashed password is not taken, because this store keeps another kind of hash: send the password"


async def handle_authenticate(context: Context, asked: Message) -> Message:
    """Answer an Authenticate: a token for the user."""
    token = await Wait(partial(context.backend.authenticate, asked.name, asked.password))
    return make("AuthenticateResponse", header=context.header(), token=token)


async def handle_status(context: Context, _: Message) -> Message:
    """Answer an AuthStatus."""
    await context.check_root()
    switch = await context.run(calls.auth_switch)
    return make(
        "AuthStatusResponse", header=context.header(), enabled=switch.is_enabled, authRevision=switch.auth_revision
    )


async def handle_enable(context: Context, _: Message) -> Message:
    """Answer an AuthEnable."""
    try:
        await context.run(calls.enable_auth)
    except AccessRefused as error:
        if error.reason is not AccessReason.ROOT_NEEDED:
            raise
        has_root = any(user.name == ROOT for user in await context.run(calls.list_users))
        words = "root user does not have root role" if has_root else "root user does not exist"
        raise EtcdError(Status.FAILED_PRECONDITION, f"etcdserver: {words}") from error
    return make("AuthEnableResponse", header=context.header())


async def handle_disable(context: Context, _: Message) -> Message:
    """Answer an AuthDisable."""
    return await _change(context, "AuthDisableResponse", AuthDisable())


async def handle_user_add(context: Context, asked: Message) -> Message:
    """Answer an AuthUserAdd."""
    if asked.hashedPassword:
        raise unimplemented(_HASHES)
    if not asked.name:
        raise invalid("user name is empty")
    password = None if asked.options.no_password else asked.password
    if password == "":
        raise invalid("password is empty")
    await context.run(lambda client: calls.add_user(client, asked.name, password, context.backend.run_in_thread))
    return make("AuthUserAddResponse", header=context.header())


async def handle_user_get(context: Context, asked: Message) -> Message:
    """Answer an AuthUserGet."""
    user = await _user(context, asked.name)
    return make("AuthUserGetResponse", header=context.header(), roles=user.roles)


async def handle_user_list(context: Context, _: Message) -> Message:
    """Answer an AuthUserList."""
    await context.check_root()
    users = await context.run(calls.list_users)
    return make("AuthUserListResponse", header=context.header(), users=[each.name for each in users])


async def handle_user_delete(context: Context, asked: Message) -> Message:
    """Answer an AuthUserDelete."""
    return await _change(context, "AuthUserDeleteResponse", UserRemove(asked.name))


async def handle_change_password(context: Context, asked: Message) -> Message:
    """Answer an AuthUserChangePassword."""
    if asked.hashedPassword:
        raise unimplemented(_HASHES)
    if not asked.password:
        raise invalid("password is empty")
    await context.run(
        lambda client: calls.change_password(client, asked.name, asked.password, context.backend.run_in_thread)
    )
    return make("AuthUserChangePasswordResponse", header=context.header())


async def handle_user_grant(context: Context, asked: Message) -> Message:
    """Answer an AuthUserGrantRole."""
    return await _change(context, "AuthUserGrantRoleResponse", UserGrant(asked.user, asked.role))


async def handle_user_revoke(context: Context, asked: Message) -> Message:
    """Answer an AuthUserRevokeRole."""
    return await _change(context, "AuthUserRevokeRoleResponse", UserRevoke(asked.name, asked.role))


async def handle_role_add(context: Context, asked: Message) -> Message:
    """Answer an AuthRoleAdd."""
    if not asked.name:
        raise EtcdError(Status.INVALID_ARGUMENT, "etcdserver: role name is empty")
    if asked.name == ROOT:  # The role root always exists here. Clients of etcd add it before they grant it.
        return make("AuthRoleAddResponse", header=context.header())
    return await _change(context, "AuthRoleAddResponse", RoleAdd(asked.name))


async def handle_role_get(context: Context, asked: Message) -> Message:
    """Answer an AuthRoleGet."""
    if asked.role == ROOT:
        everything = make("authpb.Permission", permType=2, key=b"", range_end=b"\0")
        return make("AuthRoleGetResponse", header=context.header(), perm=[everything])
    role = await _role(context, asked.role)
    permissions = []
    for start, end, rights in role.permissions:
        range_end = b"\0" if end is None else b"" if end == start + b"\0" else end
        permissions.append(
            make("authpb.Permission", permType=_RIGHTS.index(Right(rights)), key=start, range_end=range_end)
        )
    return make("AuthRoleGetResponse", header=context.header(), perm=permissions)


async def handle_role_list(context: Context, _: Message) -> Message:
    """Answer an AuthRoleList."""
    await context.check_root()
    roles = await context.run(calls.list_roles)
    return make("AuthRoleListResponse", header=context.header(), roles=[each.name for each in roles])


async def handle_role_delete(context: Context, asked: Message) -> Message:
    """Answer an AuthRoleDelete."""
    return await _change(context, "AuthRoleDeleteResponse", RoleRemove(asked.role))


async def handle_role_grant(context: Context, asked: Message) -> Message:
    """Answer an AuthRoleGrantPermission."""
    permission = asked.perm
    if not 0 <= permission.permType < len(_RIGHTS):
        raise invalid("invalid auth management")
    if asked.name == ROOT:
        return make("AuthRoleGrantPermissionResponse", header=context.header())
    start, end = bounds_of(permission)
    grant = RoleGrant(asked.name, int(_RIGHTS[permission.permType]), start, end)
    return await _change(context, "AuthRoleGrantPermissionResponse", grant)


async def handle_role_revoke(context: Context, asked: Message) -> Message:
    """Answer an AuthRoleRevokePermission."""
    return await _change(context, "AuthRoleRevokePermissionResponse", RoleRevoke(asked.role, *bounds_of(asked)))


async def _change(context: Context, response: str, command: AccessCommand) -> Message:
    await context.run(lambda client: calls.change_access(client, command))
    return make(response, header=context.header())


async def _user(context: Context, name: str) -> UserView:
    for user in await context.run(calls.list_users):
        if user.name == name:
            return user
    await context.check_root()  # Other users see only themselves.
    raise AccessRefused(AccessReason.USER_NOT_FOUND, name)


async def _role(context: Context, name: str) -> RoleView:
    for role in await context.run(calls.list_roles):
        if role.name == name:
            return role
    await context.check_root()  # Other users see only their own roles.
    raise AccessRefused(AccessReason.ROLE_NOT_FOUND, name)

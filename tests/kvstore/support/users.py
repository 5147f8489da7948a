"""Users for tests in which authentication is on."""

from __future__ import annotations

from functools import cache

from kvstore.access.passwords import SALT_BYTES, verifier_with
from kvstore.protocol.access_commands import (
    AuthEnable,
    RoleAdd,
    RoleGrant,
    UserAdd,
    UserGrant,
)
from kvstore.protocol.commands import Command, RaiseFeatureLevel

PASSWORDS = {"root": "root's password", "ada": "ada's password", "eve": "eve's password"}
"""The users: root has every right, ada may read and write the keys that begin with `app/`, and eve has no rights."""


@cache
def verifier_of(user: str) -> bytes:
    """The verifier of the password of a user. With these parameters of scrypt, a check of the password takes no time.
    The usual ones take 50 ms, and hundreds of tests check passwords."""
    return verifier_with(PASSWORDS[user], user.encode().ljust(SALT_BYTES), cost_log2=1, block_size=1, parallelism=1)


def commands_to_enable() -> list[Command]:
    """The commands that add the users and turn authentication on, in a store of any level."""
    users = [UserAdd(name, verifier_of(name)) for name in PASSWORDS]
    return [
        RaiseFeatureLevel(3),
        *users,
        UserGrant("root", "root"),
        RoleAdd("apps"),
        RoleGrant("apps", 3, b"app/", b"app0"),
        UserGrant("ada", "apps"),
        AuthEnable(bytes(range(32))),
    ]

"""The user of a client and the password, for clusters in which authentication is on."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvstore.access.passwords import password_bytes
from raft import InvalidConfiguration


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user with a password, with a token, or with both. A member gives a token after it has checked the password.
    `repr` shows neither of them. Without a password, the client cannot authenticate again once the token is invalid."""

    user: str
    password: str = field(repr=False)
    token: bytes = field(default=b"", repr=False)


def credentials_of(user: str | None, password: str | None) -> Credentials | None:
    """Return the credentials of a client; None if it has no user. Raises InvalidConfiguration, InvalidPassword."""
    if user is None and password is None:
        return None
    if not user or password is None:
        raise InvalidConfiguration(
            "a client has a user and a password, or neither: a certificate alone names its user without them"
        )
    password_bytes(password)
    return Credentials(user, password)

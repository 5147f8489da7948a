"""The users, roles, passwords and keys of the access load."""

from __future__ import annotations

from harness.sim.checks.access.states import ROOT
from harness.sim.load.coordination_program import PREFIX
from kvstore import Credentials, verifier_with

KEYS = [PREFIX + b"access/%d" % number for number in range(6)]

SALT_BYTES, TOKEN_KEY_BYTES = 16, 32
"""The lengths that the specification gives for the salt of a verifier and for the key of tokens."""

ROLES = ("r0", "r1", "r2")

SPANS = [(KEYS[0], KEYS[3]), (KEYS[1], KEYS[4]), (KEYS[3], KEYS[5]), (KEYS[2], None), (KEYS[4], KEYS[4] + b"\0")]
"""The ranges of keys on which roles have rights. They overlap."""

OF_ROOT = Credentials(ROOT, "the password of root")

OF_LOAD = Credentials("load", "the password of the ordinary load")
"""The user of the ordinary load, who always has all rights on keys."""


def cheap_verifier(password: str) -> bytes:
    """Return a verifier with the cheapest parameters of scrypt. The salt is constant, so that runs can be repeated."""
    return verifier_with(password, bytes(SALT_BYTES), 1, 1, 1)


class PasswordBook:
    """The passwords of the users, as the programs of these users know them."""

    def __init__(self) -> None:
        self._changes: dict[str, int] = {}

    def of(self, user: str) -> str:
        """Return the newest password of a user."""
        return f"password {self._changes.get(user, 0)} of {user}"

    def change(self, user: str) -> str:
        """Choose another password for a user, and return it."""
        self._changes[user] = self._changes.get(user, 0) + 1
        return self.of(user)

"""Tokens: the proof that a member has checked the password of a user. Every member can verify a token without the log.

A token is `user, expiry, signature`. The signature is an HMAC under a key of the replicated state, and covers the
verifier of the user's password. A token therefore becomes invalid if the password changes, if the user is removed, or
if authentication is turned off. A token expires by leader time, not by the clock of a member. A member whose state is
behind accepts an expired token for longer, but this member also checks the requests against its old state.
"""

from __future__ import annotations

import hmac

from kvstore.access.state import AccessState, User
from kvstore.errors import Unauthenticated
from kvstore.limits import SECOND_NS, TIME_NS_MAX
from raft import ProtocolError, decode_item, encode_item

TOKEN_NS = 15 * 60 * SECOND_NS
"""How long a token is valid, in ns of leader time."""

TOKEN_BYTES_MAX = 256
"""The greatest length of a token."""


def make_token(state: AccessState, user: User, leader_time: int) -> bytes:
    """Return a token for a user whose password was checked."""
    expiry = min(leader_time + TOKEN_NS, TIME_NS_MAX)
    return encode_item((user.name, expiry, _signature(state, user, expiry)))


def user_of_token(state: AccessState, token: bytes, leader_time: int) -> User:
    """Return the user whom a token names. Raises Unauthenticated."""
    if len(token) > TOKEN_BYTES_MAX:
        raise Unauthenticated("refused")
    try:
        name, expiry, signature = decode_item(token)
    except (ProtocolError, ValueError, TypeError) as error:
        raise Unauthenticated("refused") from error
    if type(name) is not str or type(expiry) is not int or type(signature) is not bytes:
        raise Unauthenticated("refused")
    user = state.users.get(name)
    if user is None or not hmac.compare_digest(signature, _signature(state, user, expiry)):
        raise Unauthenticated("outdated", name)
    if expiry <= leader_time:
        raise Unauthenticated("expired", name)
    return user


def _signature(state: AccessState, user: User, expiry: int) -> bytes:
    return hmac.digest(state.token_key, encode_item((user.name, expiry, user.verifier)), "sha256")

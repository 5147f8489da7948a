"""Names of members that are started by name: each data folder gets an id of its own, which consists of the name and
eight random hexadecimal digits.

An id is never used again, but a name is: after the loss of a folder, a member with a new id takes the place of the
former member of this name (docs/adr/0058-a-name-is-not-an-id.md).
"""

from __future__ import annotations

import re

from raft.errors import InvalidConfiguration

SUFFIX_BYTES = 4
"""The random bytes of an id. An id that is drawn twice is refused: a configuration remembers the last 256 removed ids,
and the members pin the folder of each id."""

NAME_PATTERN = re.compile(r"[a-z0-9-]{1,55}")
_ID_PATTERN = re.compile(r"([a-z0-9-]{1,55})-[0-9a-f]{8}")


def check_name(name: str) -> None:
    """Raises InvalidConfiguration if `name` cannot be the name of a member."""
    if not NAME_PATTERN.fullmatch(name):
        raise InvalidConfiguration(f"the name {name!r} must match {NAME_PATTERN.pattern}")
    if _ID_PATTERN.fullmatch(name):
        raise InvalidConfiguration(f"the name {name} ends like an id, with a dash and eight hexadecimal digits")


def id_with_name(name: str, random_bytes: bytes) -> str:
    """Return a new id with this name. `random_bytes`: SUFFIX_BYTES of them.

    >>> id_with_name("s-0", bytes([1, 2, 3, 255]))
    's-0-010203ff'
    """
    assert len(random_bytes) == SUFFIX_BYTES, random_bytes
    check_name(name)
    return f"{name}-{random_bytes.hex()}"


def name_of(node_id: str) -> str:
    """Return the name in an id. An id that was given by an operator is its own name.

    >>> name_of("s-0-010203ff"), name_of("s1")
    ('s-0', 's1')
    """
    found = _ID_PATTERN.fullmatch(node_id)
    return node_id if found is None else found[1]

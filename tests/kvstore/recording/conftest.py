"""The member and the names of the scenarios, as in `tests/kvstore/worlds`."""

from tests.kvstore.worlds.conftest import member_address, name

__all__ = ["member_address", "name"]

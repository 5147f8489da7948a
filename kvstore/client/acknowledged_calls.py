"""The answers to writes whose acknowledgement level is not MAJORITY.

See docs/reference/specification.md#910-acknowledgement-levels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, TypeVar

from kvstore.errors import UnderReplicated
from kvstore.protocol.messages import Code, EntryFate, Response
from kvstore.protocol.results import Accepted, WriteResult
from raft import Acknowledge, ProtocolError

Confirmed = Literal[Acknowledge.MAJORITY, Acknowledge.IN_SYNC]
"""The levels at which a write is answered with its result."""

WriteT = TypeVar("WriteT", bound=WriteResult)


def read_accepted(response: Response) -> Accepted:
    """Read the answer to a write of level LEADER. Raises ProtocolError."""
    if response.code != Code.ACCEPTED or len(response.fields) < 2:
        raise ProtocolError(f"{response.node_id} answered a write of level LEADER with something else")
    index, term = response.fields[:2]
    if type(index) is not int or type(term) is not int:
        raise ProtocolError(f"{response.node_id} gave an index or a term that is no number")
    return Accepted(index, term)


def read_in_sync(response: Response, read: Callable[[Response], WriteT]) -> WriteT:
    """Read the answer to a write of level IN_SYNC: the result that `read` decodes, and the members that hold the write.

    Raises UnderReplicated, ProtocolError.
    """
    if response.code == Code.UNDER_REPLICATED:
        min_in_sync, holders, *fields = response.fields
        if type(min_in_sync) is not int:
            raise ProtocolError(f"{response.node_id} gave a min_in_sync that is no number")
        acknowledged_by = _node_ids(response, holders)
        result = read(response._replace(code=Code.OK, fields=tuple(fields)))
        raise UnderReplicated(replace(result, acknowledged_by=acknowledged_by), acknowledged_by, min_in_sync)
    if not response.fields:
        raise ProtocolError(f"{response.node_id} does not say which members hold the write")
    *fields, holders = response.fields
    acknowledged_by = _node_ids(response, holders)
    return replace(read(response._replace(fields=tuple(fields))), acknowledged_by=acknowledged_by)


def read_fate(response: Response) -> EntryFate:
    """Read the outcome of an accepted entry. Raises ProtocolError."""
    try:
        return EntryFate(response.fields[0])
    except (ValueError, IndexError) as error:
        raise ProtocolError(f"{response.node_id} says of an entry what this build does not know") from error


def _node_ids(response: Response, value: Any) -> tuple[str, ...]:
    if type(value) is not list or not all(type(each) is str for each in value):
        raise ProtocolError(f"{response.node_id} does not name the members that hold the write")
    return tuple(value)

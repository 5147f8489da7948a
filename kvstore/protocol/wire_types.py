"""Makes dataclasses from received maps, and refuses a map if a value does not have the type of its field."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

KindT = TypeVar("KindT")


def from_wire(kind: type[KindT], item: object, **given: Any) -> KindT:
    """Make a `kind` (a dataclass) from `item`, a map by field name. Lists become tuples; unknown names are ignored.

    `given`: values of fields that are not taken from `item`. All other fields must have the types int, bool, str,
    bytes, None, or tuples of these types. Raises ValueError with the name of the field if a value has another type.
    """
    if not isinstance(item, Mapping):
        raise ValueError(f"{kind.__name__} is a map, not {type(item).__name__}")
    hints = _hints(cast(Hashable, kind))
    values = dict(given)
    for name, hint in hints.items():
        if name not in given and name in item:
            values[name] = _checked(item[name], hint, f"{kind.__name__}.{name}")
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{kind.__name__} is incomplete: {error}") from error


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _checked(value: Any, hint: Any, name: str) -> Any:
    if get_origin(hint) is tuple:
        (inner, *_) = get_args(hint)
        if not isinstance(value, list | tuple):
            raise ValueError(f"{name} is a list, not {type(value).__name__}")
        return tuple(_checked(each, inner, name) for each in value)
    allowed = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if type(value) not in [NoneType if each is None else each for each in allowed]:
        raise ValueError(f"{name} has the type {type(value).__name__}, which is not allowed")
    return value

"""A plan as a readable TOML file. The file gives the same run even if the code that draws plans from seeds has changed.

The file holds only values that differ from the usual values: from the defaults of the fields of `Plan` and its parts,
or from `USUAL` for fields without a default. The code reads the declared fields of the dataclasses, so a new field is
in the file without further code.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import tomli_w

from harness.errors import BadInput
from harness.sim.plan.plan import KINDS, DiskPlan, Plan
from raft import RaftError

Tree = dict[str, Any]
"""A tree of TOML: nested tables of numbers, strings, booleans and arrays."""

USUAL: Tree = {
    "profile": "as drawn",
    "members": ["n1", "n2", "n3"],
    "until_ns": 5_000_000_000,
    "faults": [],
    "disks": {},
    "load": {
        "with_service": False,
        "clients": 1,
        "workers": 1,
        "think_ns": 20_000_000,
        "keys": 3,
        "read_share": 0.5,
        "value_bytes_max": 16,
        "patience_ns": 2_000_000_000,
        "session_ttl_ns": 60_000_000_000,
    },
}
"""The values of an empty plan for fields without a default. Changing a value here changes the plans in existing files.
"""

SHARES = ("_rate", "_share", "target", "shape")
"""Fields whose names end in one of these are numbers from 0 to 1."""


def write_plan(plan: Plan, path: Path, comment: str) -> None:
    """Write `plan` to a file, after a comment with an explanation of the plan."""
    path.write_text(plan_text(plan, comment), encoding="utf-8")


def plan_text(plan: Plan, comment: str = "") -> str:
    """Return the text of the file, from which `read_plan` makes an equal plan."""
    tree = differing(to_tree(plan), usual_tree(plan.members) | {"members": USUAL["members"]})
    lines = [f"# {line}".rstrip() + "\n" for line in comment.splitlines()]
    return "".join(lines) + tomli_w.dumps({"seed": plan.seed, **tree})


def read_plan(path: Path) -> Plan:
    """Return the plan in a file. Raises BadInput, which states the file, the key and the value."""
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read: {error}", "name a file that `simulate --shrink` wrote") from error
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{path} is not TOML: {error}", "strings need quotes, tables [brackets]") from error
    reader = PlanReader(path)
    members = reader.value(tuple[str, ...], tree.get("members", USUAL["members"]), "members")
    if not members or len(set(members)) < len(members):
        raise reader.bad("members", tree["members"], "name each member once, one at least")
    known = tree.get("disks", {})
    for name in known if isinstance(known, dict) else ():
        if name not in members:
            raise reader.bad(f"disks.{name}", known[name], f"the members are {', '.join(members)}")
    plan = reader.value(Plan, merged(usual_tree(members), tree), "")
    assert isinstance(plan, Plan)
    return plan


def plan_of(tree: Tree) -> Plan:
    """Return the plan that a complete tree describes. Raises BadInput."""
    plan = PlanReader(Path("plan")).value(Plan, tree, "")
    assert isinstance(plan, Plan)
    return plan


# -- trees


def to_tree(value: Any) -> Any:
    """Return a dataclass and everything in it as a tree of TOML. Fields that are None are left out."""
    if is_dataclass(value):
        pairs = ((field.name, getattr(value, field.name)) for field in fields(value))
        return {name: to_tree(part) for name, part in pairs if part is not None}
    if isinstance(value, tuple | list):
        return [to_tree(part) for part in value]
    if isinstance(value, Mapping):
        return {str(name): to_tree(part) for name, part in value.items()}
    return value


def usual_tree(members: tuple[str, ...]) -> Tree:
    """Return the tree of a plan whose file contains only the members. All other values are the usual values."""
    tree = merged(defaults_of(Plan), USUAL)
    return tree | {"members": list(members), "disks": {member: defaults_of(DiskPlan) for member in members}}


def defaults_of(kind: Any) -> Tree:
    """Return the defaults of a dataclass and of the dataclasses in it."""
    tree: Tree = {}
    hints = get_type_hints(kind)
    for field in fields(kind):
        if field.default is not MISSING:
            default = to_tree(field.default)
        elif field.default_factory is not MISSING:
            default = to_tree(field.default_factory())
        else:
            default = defaults_of(hints[field.name]) if is_dataclass(hints[field.name]) else None
        if default is not None:
            tree[field.name] = default
    return tree


def differing(tree: Tree, usual: Tree) -> Tree:
    """Return the part of `tree` that differs from `usual`."""
    different: Tree = {}
    for name, value in tree.items():
        if isinstance(value, dict) and isinstance(usual.get(name), dict):
            if part := differing(value, usual[name]):
                different[name] = part
        elif name not in usual or usual[name] != value:
            different[name] = value
    return different


def merged(usual: Tree, tree: Tree) -> Tree:
    """Return a copy of `usual` in which values in `tree` replace values with the same names, even in nested trees."""
    both = dict(usual)
    for name, value in tree.items():
        under = both.get(name)
        both[name] = merged(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return both


# -- reading


class PlanReader:
    """Builds dataclasses from trees, by the types of their fields."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def bad(self, key: str, value: object, hint: str) -> BadInput:
        """Return the error about one key."""
        return BadInput(f"{self._path}: {key} = {value!r} cannot be played", hint)

    def value(self, kind: Any, tree: Any, key: str) -> Any:
        """Return `tree` as a value of type `kind`. `key`: its place in the file, for errors. Raises BadInput."""
        if is_dataclass(kind):
            return self._dataclass(kind, tree, key)
        origin, parts = get_origin(kind), get_args(kind)
        if origin in (Union, UnionType):
            return self.value(next(part for part in parts if part is not NoneType), tree, key)
        if origin is tuple:
            return self._tuple(parts, tree, key)
        if origin is dict:
            self._want(isinstance(tree, dict), key, tree, "a table is wanted")
            return {name: self.value(parts[1], part, f"{key}.{name}") for name, part in tree.items()}
        return self._scalar(kind, tree, key)

    def _want(self, holds: bool, key: str, tree: object, hint: str) -> None:
        if not holds:
            raise self.bad(key, tree, hint)

    def _tuple(self, parts: tuple[Any, ...], tree: Any, key: str) -> tuple[Any, ...]:
        self._want(isinstance(tree, list), key, tree, "an array is wanted")
        kinds = [parts[0]] * len(tree) if parts[1:] == (...,) else list(parts)
        self._want(len(kinds) == len(tree), key, tree, f"an array of {len(kinds)} is wanted")
        each = enumerate(zip(kinds, tree, strict=True))
        return tuple(self.value(kind, part, f"{key}[{place}]") for place, (kind, part) in each)

    def _dataclass(self, kind: Any, tree: Any, key: str) -> Any:
        self._want(isinstance(tree, dict), key, tree, "a table is wanted")
        hints, before = get_type_hints(kind), f"{key}." if key else ""
        for name in tree:
            if name not in hints:
                near = get_close_matches(name, hints, n=1) or sorted(hints)
                raise self.bad(f"{before}{name}", tree[name], f"there is no such key; there is {', '.join(near)}")
        for field in fields(kind):
            optional = NoneType in get_args(hints[field.name])
            has_default = field.default is not MISSING or field.default_factory is not MISSING
            if field.name not in tree and not (optional or has_default):
                raise BadInput(f"{self._path}: {before}{field.name} is missing", "write it; it has no usual value")
        values = {name: self.value(hints[name], part, f"{before}{name}") for name, part in tree.items()}
        missing = {f.name: None for f in fields(kind) if f.name not in tree and NoneType in get_args(hints[f.name])}
        try:
            return kind(**missing, **values)
        except (ValueError, RaftError) as error:
            raise self.bad(key, tree, str(error)) from error

    def _scalar(self, kind: Any, tree: Any, key: str) -> Any:
        name = key.rpartition(".")[2]
        if kind is bool or kind is str:
            wanted = "true or false" if kind is bool else "words in quotes"
            self._want(isinstance(tree, kind), key, tree, f"{wanted} are wanted")
        else:
            whole = isinstance(tree, int) and not isinstance(tree, bool)
            is_number = whole or (kind is float and isinstance(tree, float) and math.isfinite(tree))
            self._want(is_number, key, tree, "a whole number is wanted" if kind is int else "a number is wanted")
            self._want(tree >= 0 or name == "seed", key, tree, "it must not be below 0")
            self._want(tree <= 1 or not name.endswith(SHARES), key, tree, "a share from 0 to 1 is wanted")
            self._want(tree < 1 or name != "target", key, tree, "a share of the members below 1 is wanted")
        if name == "kind":
            near = get_close_matches(str(tree), KINDS, n=1) or sorted(KINDS)
            self._want(tree in KINDS, key, tree, f"no fault has this name; there is {', '.join(near)}")
        return kind(tree)

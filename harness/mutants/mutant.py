"""The data of a mutant, and the catalogue of all mutants (`catalogue/*.toml`). Example of an entry in the catalogue:

[[mutant]]
name = "a vote is not persisted"          # unique
why = "…"                                 # the effect of the defect
property = "one vote per term …"          # what no longer holds
file = "raft/core/write_stream.py"                   # in one of the packages raft, storage, kvstore
replaces = '''…'''                        # exact text, which occurs `count` times (1)
by = '''…'''
also = [{ file = "…", replaces = "…", by = "…" }]   # optional: further changes of the same defect
named = true                              # optional: a classic mistake, against which any implementation is measured
tests = ["tests/….py::test_…"]            # optional: the tests that kill it, if the simulator does not run its code
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.mutants.errors import BadCatalogue, DoesNotApply

CATALOGUE = Path(__file__).resolve().parent / "catalogue"
MUTATED_PACKAGES = ("raft", "storage", "kvstore")

_TEXTS = ("name", "why", "property", "file", "replaces", "by")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One replacement of exact text. `file` is relative to the folder that holds the packages."""

    file: str
    replaces: str
    by: str
    count: int = 1

    @property
    def package(self) -> str:
        """The top-level package that the replacement changes."""
        return self.file.partition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One defect. `property_lost`: the property that no longer holds. `is_named`: True for a classic mistake. `tests`:
    the ids of the tests of which at least one must fail; empty if a seed of the simulator must find the defect.
    """

    name: str
    why: str
    property_lost: str
    changes: tuple[Change, ...]
    is_named: bool = False
    tests: tuple[str, ...] = ()

    def mutated(self, root: Path) -> dict[str, str]:
        """Return the new text of every changed file, by its path below `root`. Raises DoesNotApply."""
        texts: dict[str, str] = {}
        for change in self.changes:
            path = root / change.file
            text = texts.get(change.file)
            if text is None:
                text = path.read_text(encoding="utf-8") if path.is_file() else ""
            found = text.count(change.replaces)
            if found != change.count:
                raise DoesNotApply(self.name, change.file, found, change.count)
            texts[change.file] = text.replace(change.replaces, change.by)
        return texts


def load_catalogue(folder: Path = CATALOGUE) -> list[Mutant]:
    """Return all mutants, sorted by the name of their catalogue file, and then by their position in this file. Raises
    BadCatalogue.
    """
    mutants: list[Mutant] = []
    for path in sorted(folder.glob("*.toml")):
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except tomllib.TOMLDecodeError as error:
            raise BadCatalogue(path.name, str(error)) from error
        if set(content) != {"mutant"} or not isinstance(content["mutant"], list):
            raise BadCatalogue(path.name, "it must be a list of [[mutant]] and nothing else")
        for place, fields in enumerate(content["mutant"], start=1):
            mutants.append(_mutant(f"{path.name}, mutant {place}", fields))
    _check_names(mutants)
    return mutants


def _mutant(place: str, fields: Mapping[str, Any]) -> Mutant:
    unknown = set(fields) - {*_TEXTS, "count", "also", "named", "tests"}
    if unknown:
        raise BadCatalogue(place, f"unknown fields {', '.join(sorted(unknown))}")
    for name in _TEXTS:
        if not isinstance(fields.get(name), str) or (name != "by" and not fields[name].strip()):
            raise BadCatalogue(place, f"{name} must be a text")
    tests = fields.get("tests", [])
    if not isinstance(tests, list) or not all(isinstance(test, str) and "::" in test for test in tests):
        raise BadCatalogue(place, "tests must be a list of test ids, as in tests/x.py::test_y")
    first = {key: fields[key] for key in ("file", "replaces", "by", "count") if key in fields}
    return Mutant(
        name=fields["name"],
        why=fields["why"],
        property_lost=fields["property"],
        changes=tuple(_change(place, each) for each in (first, *fields.get("also", ()))),
        is_named=fields.get("named") is True,
        tests=tuple(tests),
    )


def _change(place: str, fields: Mapping[str, Any]) -> Change:
    try:
        change = Change(**fields)
    except TypeError as error:
        raise BadCatalogue(place, str(error)) from error
    if change.package not in MUTATED_PACKAGES:
        raise BadCatalogue(place, f"{change.file} is not in {', '.join(MUTATED_PACKAGES)}")
    if change.replaces == change.by:
        raise BadCatalogue(place, "it replaces a text by itself")
    if change.count < 1:
        raise BadCatalogue(place, "count is at least 1")
    return change


def _check_names(mutants: Iterable[Mutant]) -> None:
    seen: set[str] = set()
    for mutant in mutants:
        if mutant.name in seen:
            raise BadCatalogue(mutant.name, "two mutants have this name")
        seen.add(mutant.name)

"""A check that `raft` and `storage` are the packages of this project. Other packages may have the same names."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

SIBLINGS = ("raft", "storage")


class ShadowedPackage(ImportError):
    """`import storage` (or `raft`) finds a package that does not belong to this project."""

    def __init__(self, package: str, found: str, expected: str) -> None:
        super().__init__(package, found, expected)
        self.package, self.found, self.expected = package, found, expected

    def __str__(self) -> str:
        return (
            f"`import {self.package}` finds {self.found}, but highwatermark needs its own package of that name, in "
            f"{self.expected}. Rename the other one, or move it into a package; kvstore.Client alone needs only `raft`"
        )


def check_not_shadowed(packages: tuple[str, ...] = SIBLINGS) -> None:
    """Raise ShadowedPackage if another package comes before a package of this project on the import path."""
    ours = Path(__file__).resolve().parent.parent
    for package in packages:
        spec = find_spec(package)
        places = list(spec.submodule_search_locations or [spec.origin or "?"]) if spec else ["nothing"]
        if str(ours / package) not in [str(Path(place).resolve()) for place in places]:
            raise ShadowedPackage(package, places[0], str(ours / package))

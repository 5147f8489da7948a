"""Copies of the packages in a separate folder: one copy without a defect, and one copy for each mutant."""

from __future__ import annotations

import shutil
from pathlib import Path

import harness
from harness.mutants.mutant import Mutant

PACKAGES = ("raft", "storage", "kvstore", "harness", "spark_audit")
TESTS = ("tests", "pyproject.toml")
"""The tests and their configuration. They are copied without a defect, if the checkout has them, for mutants that tests
kill."""

CLEAN = "clean"


def source_root() -> Path:
    """Return the folder that holds the packages of this process."""
    assert harness.__file__ is not None
    return Path(harness.__file__).resolve().parent.parent


class Copies:
    """All copies of one `Hunt`, below `folder`. Edits in the checkout during the search do not affect the copies."""

    def __init__(self, folder: Path, source: Path | None = None) -> None:
        self._folder = folder
        self.clean = folder / CLEAN
        for package in PACKAGES:
            origin = (source or source_root()) / package
            shutil.copytree(origin, self.clean / package, ignore=shutil.ignore_patterns("__pycache__"))
        self._others = list(PACKAGES)
        for name in TESTS:
            path = (source or source_root()) / name
            if path.is_dir():
                shutil.copytree(path, self.clean / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif path.is_file():
                shutil.copy(path, self.clean / name)
            if path.exists():
                self._others.append(name)
        self._made = 0

    def with_mutant(self, mutant: Mutant) -> Path:
        """Make a copy with the defect. Unchanged packages are symbolic links, unless tests are to kill the mutant.
        Raises DoesNotApply."""
        texts = mutant.mutated(self.clean)
        self._made += 1
        root = self._folder / f"mutant-{self._made}"
        root.mkdir()
        touched = {change.package for change in mutant.changes}
        for package in self._others:
            is_copied = package in touched or bool(mutant.tests)  # Tests check that the packages are beside them.
            if is_copied and (self.clean / package).is_dir():
                # No byte code is copied, because Python could use the byte code of the original for the changed file.
                shutil.copytree(self.clean / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                (root / package).symlink_to(self.clean / package)
        for file, text in texts.items():
            (root / file).write_text(text, encoding="utf-8")
        return root

    def remove(self, root: Path) -> None:
        """Remove a mutant's copy."""
        assert root.parent == self._folder, root
        assert root != self.clean, "others still need the clean copy"
        shutil.rmtree(root)

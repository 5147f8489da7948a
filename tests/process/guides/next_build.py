"""Makes a second build on disk. It consists of these packages as their next minor version might be, with one more
feature level.

The next build adds a command `note` from level 4 on. Its hello, its acknowledgements and its status have fields that
today's build does not know. Later versions may add such fields (docs/reference/versions.md).
"""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("raft", "storage", "kvstore")

NEXT_LEVEL = 4
NOTE_KIND = 63

CHANGES: tuple[tuple[str, str, str], ...] = (
    ("kvstore/limits.py", f"FEATURE_LEVEL_MAX = {NEXT_LEVEL - 1}\n", f"FEATURE_LEVEL_MAX = {NEXT_LEVEL}\n"),
    # The command `note` changes nothing in the store, and is answered.
    (
        "kvstore/protocol/commands.py",
        "    RAISE_FEATURE_LEVEL = 20\n",
        f"    RAISE_FEATURE_LEVEL = 20\n    NOTE = {NOTE_KIND}\n",
    ),
    (
        "kvstore/protocol/validation.py",
        "_NEWEST_VALIDATORS = ",
        "_VALIDATORS[4] = {**_VALIDATORS[3], CommandKind.NOTE: _validate_bare}\n_NEWEST_VALIDATORS = ",
    ),
    (
        "kvstore/store/machine.py",
        "        if kind > CommandKind.COMPACT:\n",
        "        if kind == CommandKind.NOTE:\n            return (0, self._store.revision, (kind,))\n"
        "        if kind > CommandKind.COMPACT:\n",
    ),
    # An older build ignores these fields.
    (
        "raft/protocol/hello.py",
        "            return [self.peer_address, self.level_min, self.level_max, self.process_id]\n",
        '            return [self.peer_address, self.level_min, self.level_max, self.process_id, {"more": [1, 2]}]\n',
    ),
    (
        "raft/protocol/codec.py",
        "rest = (m.priority,) if m.priority else ()\n",
        "rest = (m.priority, 12345)\n",
    ),
    ("kvstore/protocol/status.py", "    return asdict(status)\n", '    return asdict(status) | {"notes": 7}\n'),
)
"""(file, text that occurs once in this file, new text)."""


NEWER_MEMBERS = (
    ("raft/membership/configuration.py", "_LEVEL, _LEASE_LEVEL = 2, 3\n", "_LEVEL, _LEASE_LEVEL = 2, 4\n"),
)
"""A later form of the member list. Today's leader appends the form with leases at the first read by lease, without
checking the builds of the other members. The leader of this build appends the later form in the same way. No real build
may append a new form in this way (docs/reference/versions.md)."""


def make_next_build(folder: Path, changes: tuple[tuple[str, str, str], ...] = CHANGES) -> Path:
    """Put the packages of the next build into `folder`. In this folder, `python -m kvstore.cli.main` runs the next
    build."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    for file, old, new in changes:
        path = folder / file
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{file} has {text.count(old)} places that read {old!r}; CHANGES must follow it"
        path.write_text(text.replace(old, new), encoding="utf-8")
    return folder

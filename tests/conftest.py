"""What every test trusts: that it tests this checkout, and not a package of the same name from elsewhere."""

from __future__ import annotations

from pathlib import Path

import harness
import kvstore
import raft
import spark_audit
import storage

ROOT = Path(__file__).resolve().parent.parent

for _package in (raft, storage, kvstore, harness, spark_audit):
    assert _package.__file__ is not None, _package
    assert Path(_package.__file__).resolve().parent.parent == ROOT, (
        f"{_package.__name__} comes from {_package.__file__}, not from {ROOT}: tests would prove nothing"
    )

"""For ten minutes, hostile strangers connect to every port of a real cluster, with honest clients and killed
members."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

MINUTES = 10
SEED = 1


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(60 * (2 * MINUTES + 5))
def test_strangers_lose_nothing_end_nobody_and_delay_honest_clients_little(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    command = ["hostile", f"--minutes={MINUTES}", f"--seed={SEED}", f"--out={tmp_path / 'run'}", "--json"]
    ended = subprocess.run(
        [sys.executable, "-m", "harness.cli", *command],
        capture_output=True,
        text=True,
        timeout=60 * (2 * MINUTES + 4),
        check=False,
    )

    assert ended.stdout, ended.stderr
    result = json.loads(ended.stdout)
    for name in ("seed", "p99_ratio", "rss_bytes_max", "audit_words", "findings"):
        record_property(name, result[name])
    for kind in ("quiet", "hostile"):
        record_property(f"{kind}_p99_ms", result[kind]["p99_ms"])
    record_property("rss_bytes_peak", result["rss_bytes_peak"])
    assert result["findings"] == [], ended.stderr
    assert ended.returncode == 0

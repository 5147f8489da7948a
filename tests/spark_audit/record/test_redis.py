"""The program of docs/guides/record-anything.md, with a real Redis."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from spark_audit.record import Recorder
from tests.spark_audit.record.helpers import ROOT, checked, verdict_of
from tests.spark_audit.record.redis_server import running_redis


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """The URL of a Redis that only this test uses."""
    with running_redis(tmp_path) as url:
        yield url


@pytest.mark.process
def test_the_guide_leads_to_the_verdict_linearizable(url: str, tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "guides" / "record-anything.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", guide, flags=re.DOTALL)
    folder = tmp_path / "program"
    folder.mkdir()

    subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env={**os.environ, "REDIS_URL": url}, timeout=60, check=True
    )

    assert "hwm-audit check history\n" in guide
    verdict = verdict_of(folder / "history")
    assert (verdict["status"], verdict["operations"]) == ("linearizable", 800)


@pytest.mark.process
def test_a_cache_in_front_of_redis_is_a_violation(url: str, tmp_path: Path) -> None:
    store = redis.Redis.from_url(url)
    cache: dict[str, bytes] = {}
    with Recorder(tmp_path / "history", values="plain") as recorder, store:
        for number in range(20):
            with recorder.put("writer", "color", f"v{number}") as put:
                store.set("color", f"v{number}")
                put.ok()
            with recorder.get("reader", "color") as get:
                read = store.get("color")
                assert isinstance(read, bytes)
                get.ok(read if number % 5 else cache.setdefault("color", read))

    assert checked(tmp_path / "history").exit_code == 3
    (violation, *_) = verdict_of(tmp_path / "history")["violations"]
    assert len(violation["operations"]) <= 4

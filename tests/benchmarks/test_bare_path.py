"""The bare path answers each put once, when a majority has stored the put, and both of its stores count the same number
of puts."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.load.plan import CONTENDERS, Contender
from benchmarks.load.spec import LoadSpec
from benchmarks.systems.bare_node import BareStore
from benchmarks.systems.run import running
from raft import encode_item

pytestmark = [pytest.mark.process, pytest.mark.timeout(60)]

BARE = [each for each in CONTENDERS if each.kind == "bare"]


@pytest.mark.parametrize("contender", BARE, ids=lambda each: each.name)
def test_every_put_takes_place_once(contender: Contender, tmp_path: Path) -> None:
    spec = LoadSpec(
        kind="bare",
        endpoints=[],
        work="put",
        in_flight=64,
        connections=4,
        rate=0,
        value_bytes=100,
        existing_keys=300,
        seed=1,
        warmup_seconds=0.0,
        seconds=0.0,
        fill=True,
    )
    with running(contender, 3, tmp_path) as cluster:
        result = cluster.run(spec)

    assert (result.puts, result.unanswered, result.errors) == (300, 0, {})
    assert result.revision_after - result.revision_before == 300


def test_records_count_their_versions() -> None:
    store = BareStore(keeps_records=True)
    frames = encode_item([1, b"k", b"old"]) + encode_item([2, b"j", b"x"]) + encode_item([3, b"k", b"new"])

    assert [item[0] for item in store.apply(3, frames)] == [1, 2, 3]

    assert store.revision == 3
    assert store.records == {b"k": (b"new", 1, 3, 2), b"j": (b"x", 2, 2, 1)}

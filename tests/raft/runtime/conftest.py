"""What the tests of running members share."""

from __future__ import annotations

from tests.kvstore.conftest import quick_folder

__all__ = ["quick_folder"]

"""Three real members for the examples."""

from __future__ import annotations

from kvstore.testing.fixtures import hwm_cluster

__all__ = ["hwm_cluster"]

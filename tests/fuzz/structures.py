"""The malformed structures that the strangers of the harness send, for fuzzing in process, too."""

from __future__ import annotations

from harness.strangers.structures import Item, Structures

__all__ = ["Item", "Structures"]

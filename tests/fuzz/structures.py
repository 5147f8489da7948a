"""The malformed structures that the strangers of the harness send. Fuzzing tests in this process use them, too."""

from __future__ import annotations

from harness.strangers.structures import Item, Structures

__all__ = ["Item", "Structures"]

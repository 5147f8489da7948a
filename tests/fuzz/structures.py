"""What the strangers of the harness make, for fuzzing in process, too."""

from __future__ import annotations

from harness.strangers.structures import Item, Structures

__all__ = ["Item", "Structures"]

"""Makes it possible to compare the verdicts of several engines."""

from __future__ import annotations

import json
from typing import Any

from spark_audit import Verdict


def comparable(verdict: Verdict) -> dict[str, Any]:
    """The fields of a verdict that must not depend on the engine."""
    fields = verdict.to_dict()
    for name in ("engine", "seconds"):
        del fields[name]
    for name in ("violations", "undecided"):
        fields[name] = sorted(json.dumps(found, sort_keys=True) for found in fields[name])
    return fields

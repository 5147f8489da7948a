"""The local engine, which audits rows in memory (`check_rows`) or files (`job.audit`) in this process, without a JVM.

`check_rows` needs no optional dependency; `job` and its imports need the `audit` extra.
"""

from __future__ import annotations

from spark_audit.local.rows import check_rows

__all__ = ["check_rows"]

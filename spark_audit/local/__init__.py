"""The engine in this process, without a JVM: for rows in memory (`check_rows`), and for files (`job.audit`).

Importing this package, and `check_rows`, needs nothing but Python; `job` and its imports need the `audit` extra.
"""

from __future__ import annotations

from spark_audit.local.rows import check_rows

__all__ = ["check_rows"]

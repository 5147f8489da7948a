"""The audit in this process, without a JVM: of rows in hand (`check_rows`), and of files (`job.audit`).

Importing this package, and `check_rows`, needs nothing but Python; `job` and what it calls need the `audit` extra.
"""

from __future__ import annotations

from spark_audit.local.rows import check_rows

__all__ = ["check_rows"]

"""The audit in this process, without a JVM: of rows in hand (`check_rows`), and of files (`job.audit`).

Importing this package, and `check_rows`, needs nothing but Python; `job` and what it calls need the `audit` extra.
"""

from spark_audit.local.rows import after_unknown, check_rows, overlapping

__all__ = ["after_unknown", "check_rows", "overlapping"]

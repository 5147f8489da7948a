"""Adapters: clients of well-known stores whose calls are recorded, with the right outcome of each call.

What belongs here: one small file per client library. An adapter decides which calls are reads, writes, deletions and
compare-and-sets of one key, and which errors prove that a write had no effect; it refuses every other call. It loads
its library only when it is given a client of it, so none of the libraries is needed to import this chapter.
docs/guides/record-with-adapters.md is the guide.
"""

from __future__ import annotations

from spark_audit.record.adapters.etcd import EtcdValue, RecordedEtcd, recorded_etcd
from spark_audit.record.adapters.postgresql import RecordedAsyncTable, RecordedTable, recorded_table
from spark_audit.record.adapters.redis import RecordedAsyncRedis, RecordedRedis, recorded_redis

__all__ = [
    "EtcdValue",
    "RecordedAsyncRedis",
    "RecordedAsyncTable",
    "RecordedEtcd",
    "RecordedRedis",
    "RecordedTable",
    "recorded_etcd",
    "recorded_redis",
    "recorded_table",
]

"""A page of the log costs a member only a bounded amount of work, no matter how much the client requests."""

from __future__ import annotations

from pathlib import Path

from kvstore.limits import ServiceLimits
from kvstore.protocol.commands import Put
from kvstore.protocol.messages import Code, command_request, encode_request, read_log_request
from tests.kvstore.server.test_service import RawClient
from tests.kvstore.support.in_memory_cluster import Cluster


def test_a_page_of_small_entries_is_a_small_part_of_the_log(tmp_path: Path) -> None:
    """A page of 1 MiB with entries of 60 bytes would take a member 100 ms. Then 200 requests that arrive together would
    block the member for 20 s."""
    cluster = Cluster(tmp_path, 1)
    cluster.leader()
    client = RawClient(cluster)
    for request_id in range(1, 1_501):
        client.ask(encode_request(request_id, command_request(Put(b"key-%d" % request_id, bytes(100)))))

    page = client.ask(encode_request(2_000, read_log_request(1, 0)))

    assert page.code == Code.OK
    entries, commit_index = page.fields
    assert 50 < len(entries) < commit_index
    assert sum(len(entry[3]) for entry in entries) <= ServiceLimits().log_bytes_max

"""A real member has no file descriptors left. It refuses writes and continues, and it accepts writes again when it has
descriptors."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from kvstore import Busy, Client, OutcomeUnknown
from kvstore.protocol.status import MemberStatus
from tests.process.servers import running_cluster

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(60),
    pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="the limit of another process is Linux's to change"),
]
VALUE = bytes(2_000)


async def puts_until_one_waits(client: Client) -> int:
    """Write until the log needs another file. Returns the number of acknowledged puts."""
    for count in range(100):
        try:
            await client.put(b"k%d" % count, VALUE, deadline_seconds=0.5)
        except OutcomeUnknown:  # The entry of this put waits in the log, so its outcome is unknown.
            return count
    raise AssertionError("the log needed no other file")


async def test_a_member_without_descriptors_refuses_writes_and_takes_them_again_with_more(tmp_path: Path) -> None:
    """The member's log needs another file and cannot open it. Nothing is damaged, so the member goes on."""
    with running_cluster(tmp_path, 1, "--segment-bytes", "8000") as cluster:
        (server,) = cluster.servers.values()
        async with cluster.client() as client:
            await client.put(b"before", b"1")
            hard = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)[1]
            limit = len(os.listdir(f"/proc/{server.pid}/fd"))  # noqa: PTH208
            resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (limit, hard))
            count = await puts_until_one_waits(client)
            with pytest.raises(Busy, match=rf"too many files are open \(limit {limit}\)"):
                await client.put(b"refused", b"", deadline_seconds=0.5)
            found = await client.get(b"before")
            (told,) = (await client.cluster_status()).values()
            resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (hard, hard))
            await client.put(b"after", b"2", deadline_seconds=20)
            stored = [(await client.get(b"k%d" % number)).record for number in range(count + 1)]
            refused = (await client.get(b"refused")).record

        assert found.record is not None
        assert isinstance(told, MemberStatus), told
        assert told.lacks_descriptors == f"too many files are open (limit {limit})"
        assert not told.is_disk_full
        assert [record and record.value for record in stored] == (count + 1) * [VALUE]  # This includes the waiting put.
        assert (count > 0, refused) == (True, None)

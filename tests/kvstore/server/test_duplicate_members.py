"""If a member has noticed a copy of another member, it reports this copy."""

from __future__ import annotations

from pathlib import Path

from kvstore.cli.cluster.status import of_its_peers
from kvstore.protocol.messages import DecodedRequest, RequestKind
from kvstore.protocol.status import status_from_map
from kvstore.server.cluster_requests import ClusterRequests
from tests.kvstore.support.in_memory_cluster import Cluster


def test_the_status_of_a_member_warns_of_copies_that_it_has_noticed(tmp_path: Path) -> None:
    host = Cluster(tmp_path, 1).hosts["s1"]
    cluster: ClusterRequests = host.service.cluster
    cluster.duplicate_members = lambda: ("s3",)

    fields = cluster.answer(DecodedRequest(1, RequestKind.STATUS, []))

    assert fields is not None
    assert of_its_peers(status_from_map(fields[0])) == [
        "two processes connect to it as s3, with copies of one data folder: stop one of them"
    ]


def test_a_member_that_does_not_say_whom_it_noticed_is_understood(tmp_path: Path) -> None:
    """During an upgrade, members of an older build do not report noticed copies."""
    host = Cluster(tmp_path, 1).hosts["s1"]
    (fields,) = host.service.cluster.answer(DecodedRequest(1, RequestKind.STATUS, [])) or ({},)
    del fields["duplicate_members"]

    assert of_its_peers(status_from_map(fields)) == []

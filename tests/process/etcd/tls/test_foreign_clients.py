"""Foreign clients over TLS: etcdctl has the HTTP/2 of Go, and grpcio that of gRPC's C core."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.process.etcd.etcdctl import Etcdctl
from tests.process.etcd.members import USES_REAL_ETCD
from tests.process.etcd.messages import Message, message
from tests.process.servers import running_cluster
from tests.raft.support.certificates import Certificates

pytestmark = [pytest.mark.process, pytest.mark.timeout(100)]

SECONDS = 20.0
LARGE = 1_000_000
PUT, RANGE, WATCH = "/etcdserverpb.KV/Put", "/etcdserverpb.KV/Range", "/etcdserverpb.Watch/Watch"


@pytest.fixture(scope="module")
def tls_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Sequence[str], Path]]:
    """The addresses of three members whose client ports have TLS, and the file of their authority."""
    if USES_REAL_ETCD:
        pytest.skip("the certificates are those of our members")
    folder = tmp_path_factory.mktemp("tls")
    made = Certificates(folder / "certificates")
    certificate = made.issue("port.pem", "127.0.0.1", "localhost")
    with running_cluster(folder, 3, "--etcd", f"--tls-cert={certificate}", f"--ca={made.ca}") as cluster:
        yield cluster.endpoints, made.ca


def test_etcdctl_reads_writes_and_watches(tls_cluster: tuple[Sequence[str], Path]) -> None:
    endpoints, authority = tls_cluster
    etcdctl = Etcdctl([f"https://{each}" for each in endpoints], authority=authority)
    etcdctl.put("watched", "1")
    with etcdctl.running("watch", "--rev=1", "watched") as watch:
        assert watch.lines(3) == ["PUT", "watched", "1"]
        etcdctl.put("watched", "2")
        assert watch.lines(3) == ["PUT", "watched", "2"]
    etcdctl("put", "large", stdin="v" * LARGE)
    found = etcdctl("get", "large", "--print-value-only")
    assert found.rstrip("\n") == "v" * LARGE


def test_etcdctl_refuses_members_of_another_authority(tls_cluster: tuple[Sequence[str], Path], tmp_path: Path) -> None:
    endpoints, _ = tls_cluster
    other = Certificates(tmp_path / "other")
    etcdctl = Etcdctl([f"https://{endpoints[0]}"], authority=other.ca)
    assert etcdctl.run("--dial-timeout=1s", "--command-timeout=2s", "get", "a").code != 0


def test_grpcio_reads_writes_and_watches(tls_cluster: tuple[Sequence[str], Path]) -> None:
    grpc = pytest.importorskip("grpc", reason="grpcio is not installed: pip install grpcio")
    endpoints, authority = tls_cluster
    credentials = grpc.ssl_channel_credentials(authority.read_bytes())
    with grpc.secure_channel(endpoints[0], credentials) as channel:
        put, get = channel.unary_unary(PUT), channel.unary_unary(RANGE)
        events = channel.stream_stream(WATCH)(iter([message((1, message((1, b"b"))))]), timeout=SECONDS)
        next(events)  # The watch exists.
        put(message((1, b"a"), (2, bytes(LARGE))), timeout=SECONDS)
        [found] = Message(get(message((1, b"a")), timeout=SECONDS)).parts(2)
        assert found.bytes(5) == bytes(LARGE)

        waiting = [get.future(message((1, b"a")), timeout=SECONDS) for _ in range(30)]
        put(message((1, b"b"), (2, b"v")), timeout=SECONDS)
        assert Message(next(events)).parts(11)
        assert all(len(each.result()) > LARGE for each in waiting)

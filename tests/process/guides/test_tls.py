"""The recipes of docs/operations/tls.md, exactly as they are written there, with real processes and real
certificates."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest
import trio

from kvstore import Client, MemberTls, Tls, Unavailable, UnusableCertificates
from kvstore.member.certificates import MemberCertificates
from tests.process.guides.test_tutorial import make_commands, run_script, with_free_ports
from tests.process.guides.test_upgrade import replaced
from tests.process.servers import Server, ServerCluster, hwm, running_cluster
from tests.process.test_server_kills import Ledger

pytestmark = [pytest.mark.process, pytest.mark.timeout(100)]

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "operations" / "tls.md").read_text(encoding="utf-8")
MAKE, START, USE, MIXED = re.findall(r"^ *```sh\n(.*?)^ *```", PAGE, re.DOTALL | re.MULTILINE)

WRITERS = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the certificates of the page were made."""
    made = tmp_path_factory.mktemp("page")
    subprocess.run(["bash", "-e", "-c", MAKE], cwd=made, check=True, capture_output=True, timeout=60)
    return made


def options_in(recipe: str, node_id: str, folder: Path) -> list[str]:
    """The options of TLS in the line that starts a member."""
    (line,) = [line.strip() for line in recipe.splitlines() if line.strip().startswith("hwm serve")]
    words = line.partition(" & ")[0].replace("$ID", node_id).split()
    assert words[:5] == ["hwm", "serve", f"data/{node_id}", "--node-id", node_id]
    of_tls = [word for word in words[5:] if word != '"${MEMBERS[@]}"' and word != "--bootstrap"]
    return [str(folder / word) if word.startswith("certs/") else word for word in of_tls]


def tls_of(folder: Path) -> Tls:
    certs = folder / "certs"
    return Tls(ca=certs / "ca.pem", cert=certs / "client.pem", key=certs / "client.key")


def log_of(server: Server) -> str:
    return server.log.read_text(encoding="utf-8")


def test_the_certificate_of_a_client_names_no_host(folder: Path) -> None:
    """If the certificate of a client named a host, the client could pose as a member to other clients."""
    certs = folder / "certs"
    tls = MemberTls(peer_cert=certs / "client.pem", peer_key=certs / "client.key", peer_ca=certs / "ca.pem")
    with pytest.raises(UnusableCertificates, match="names client, and this member is s1"):
        MemberCertificates("s1", tls)


def test_a_new_cluster_with_tls_is_started_and_used_from_a_shell(tmp_path: Path) -> None:
    """The commands are run in the order of the page, in one shell."""
    make_commands(tmp_path / "bin")
    (tmp_path / "work").mkdir()
    refused = """
refused() { "$@" && exit 1; echo "exit code $?"; }
hwm get greeting --ca certs/ca.pem --cert certs/client.pem --key certs/client.key
hwm bench --seconds 0.2 --clients 1 --in-flight 4 --keys 10
unset HWM_CA HWM_CERT HWM_KEY
refused hwm get greeting --deadline 1
refused hwm get greeting --deadline 1 --ca certs/ca.pem
refused hwm get greeting --cert certs/client.pem
kill $(cat s1.pid s2.pid s3.pid)
wait
"""
    said = run_script(with_free_ports(MAKE + START + USE) + refused, tmp_path / "work", tmp_path / "bin")
    assert all(
        re.search(rf"^\W*{node_id}\W+(leader|follower)\b", said, re.MULTILINE) for node_id in ("s1", "s2", "s3")
    ), said
    assert "\nhello\n" in said
    lines = "this port takes only connections with TLS.*\n(.*\n)*?exit code 5\n"
    lines += "(.*\n)*?.*the other side requires a certificate of this side.*\n(.*\n)*?exit code 5\n"
    lines += "(.*\n)*?.*--cert and --key need --ca.*\n(.*\n)*?exit code 2\n"
    assert re.search(lines, said), said


async def refuses(endpoint: str) -> bool:
    """True if the member refuses a client without TLS."""
    try:
        async with Client([endpoint], deadline_seconds=1) as client:
            await client.status()
    except Unavailable as error:
        return "only connections with TLS" in str(error)
    return False


async def restarted(cluster: ServerCluster, options: dict[str, list[str]], ledger: Ledger) -> None:
    """Restart one member after the other with these options of TLS, while writers continue."""
    base = {node_id: server.arguments for node_id, server in cluster.servers.items()}
    for node_id, server in cluster.servers.items():
        plain = [word for word in base[node_id] if not is_of_tls(word)]
        server.arguments = [*plain, *options.get(node_id, [])]
        await replaced(server, None)
        await ledger.wait_for(20)


def is_of_tls(word: str) -> bool:
    return word.startswith(("--tls-", "--peer-", "--client-ca")) or "/certs/" in word


def test_tls_is_turned_on_and_off_under_writes_and_no_write_fails(tmp_path: Path, folder: Path) -> None:
    """While the members accept connections with TLS and without, the clients change to TLS, and later back."""
    nodes = ("s1", "s2", "s3")
    mixed = {node_id: options_in(MIXED, node_id, folder) for node_id in nodes}
    only = {node_id: [word for word in mixed[node_id] if word != "--tls-mixed"] for node_id in nodes}
    assert all(len(only[node_id]) == len(mixed[node_id]) - 1 for node_id in nodes)
    ledger, tls = Ledger(), tls_of(folder)

    async def with_writers(cluster: ServerCluster, tls: Tls | None, number: int, *phases: dict[str, list[str]]) -> None:
        async with Client(cluster.endpoints, tls=tls, deadline_seconds=20) as client, trio.open_nursery() as nursery:
            for writer in range(WRITERS):
                nursery.start_soon(ledger.write_forever, client, 10 * number + writer)
            await ledger.wait_for(20)
            for options in phases:
                await restarted(cluster, options, ledger)
            nursery.cancel_scope.cancel()

    async def main(cluster: ServerCluster) -> None:
        with trio.fail_after(90):
            await with_writers(cluster, None, 1, mixed)
            await with_writers(cluster, tls, 2, only)
            assert [await refuses(endpoint) for endpoint in cluster.endpoints] == [True] * 3
            await with_writers(cluster, tls, 3, mixed)
            await with_writers(cluster, None, 4, {})
            async with cluster.client() as client:
                await ledger.check(client)
        assert ledger.failed == {}

    with running_cluster(tmp_path, 3, "--log-level=warning") as cluster:
        for server in cluster.servers.values():
            server.arguments = [word for word in server.arguments if word != "--bootstrap"]
        trio.run(main, cluster)
        assert all("without TLS, which --tls-mixed allows" in log_of(server) for server in cluster.servers.values())


def test_renewed_certificates_are_used_after_a_signal(tmp_path: Path, folder: Path) -> None:
    """This SIGHUP comes from a supervisor, because the process has no terminal."""
    certs = tmp_path / "certs"
    certs.mkdir()
    for name in ("ca.pem", "s1.pem", "s1.key", "s2.pem", "s2.key"):
        (certs / name).write_bytes((folder / "certs" / name).read_bytes())
    arguments = [f"--tls-cert={certs}/s1.pem", f"--tls-key={certs}/s1.key", "--log-level=info"]

    async def main(cluster: ServerCluster) -> None:
        server = cluster.servers["s1"]

        async def logs(words: str) -> None:
            while words not in log_of(server):
                server.send_signal(signal.SIGHUP)
                await trio.sleep(0.02)

        with trio.fail_after(60):
            (certs / "s1.pem").write_bytes((certs / "s2.pem").read_bytes())
            await logs("does not belong to the certificate")
            (certs / "s1.key").write_bytes((certs / "s2.key").read_bytes())
            await logs("have changed, and new connections use them")
            async with Client(cluster.endpoints, tls=Tls(ca=certs / "ca.pem")) as client:
                await client.put(b"a", b"1")

    # A server ignores SIGHUP if SIGHUP was ignored when the server started. The tests may run under `nohup`.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with running_cluster(tmp_path, 1, *arguments) as cluster:
            trio.run(main, cluster)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_member_with_files_that_cannot_be_used_does_not_start(tmp_path: Path, folder: Path) -> None:
    certs = folder / "certs"

    def start(*options: str) -> tuple[int, str]:
        member = "--member=s1=127.0.0.1:1/127.0.0.1:0"
        done = subprocess.run(
            hwm("serve", tmp_path / "d", "--node-id", "s1", member, "--bootstrap", *options),
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        return done.returncode, done.stderr

    code, words = start(f"--tls-cert={certs}/nowhere.pem")
    assert (code, "nowhere.pem: no such file" in words) == (3, True), words
    code, words = start(f"--peer-cert={certs}/s2.pem", f"--peer-key={certs}/s2.key", f"--peer-ca={certs}/ca.pem")
    assert (code, "names s2, localhost, and this member is s1" in words) == (3, True), words
    code, words = start(f"--peer-cert={certs}/s1.pem")
    assert (code, "--peer-cert and --peer-ca" in words) == (2, True), words
    code, words = start(
        f"--tls-cert={certs}/s1.pem", f"--tls-key={certs}/s1.key", "--tls-mixed", "--listen-client=0.0.0.0:0"
    )
    assert (code, "--insecure" in words) == (3, True), words

"""Read-only transactions: a read round answers them, they write nothing to the log, and they are still linearizable."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from kvstore import EmbeddedStore, open_node
from kvstore.errors import OutcomeUnknown, ResponseTooLarge, RevisionCompacted, StoreError, Unavailable
from kvstore.limits import MIB
from kvstore.protocol.commands import (
    Add,
    Append,
    CommandKind,
    Compare,
    Comparison,
    Delete,
    DeleteRange,
    Get,
    Operation,
    Put,
    Range,
    Target,
    Txn,
    command_body,
    decode_payload,
)
from kvstore.protocol.messages import Code, Consistency, command_request, encode_request, read_request
from kvstore.protocol.results import GetResult, TxnResult, read_result
from kvstore.protocol.validation import only_reads
from kvstore.server import request_judge
from raft import EntryKind, frame
from tests.kvstore.server.test_service import RawClient
from tests.kvstore.support.in_memory_cluster import Cluster

pytestmark = [pytest.mark.timeout(60)]

IS_ABSENT = Compare(b"a", Target.VERSION, Comparison.EQUAL, 0)
READS: dict[str, Txn] = {
    "nothing": Txn(),
    "a get": Txn((), (Get(b"a"),)),
    "both branches": Txn((IS_ABSENT,), (Get(b"b"),), (Range(b"a", b"z"), Get(b"none"))),
    "a comparison of a range": Txn((Compare(b"a", Target.VERSION, Comparison.GREATER, 0, None),), (Get(b"a"),)),
    "an older revision": Txn((), (Get(b"a", 2), Range(b"", None, revision=2))),
    "an inner transaction": Txn((IS_ABSENT,), (), (Get(b"a"), Txn((IS_ABSENT,), (Get(b"b"),), (Get(b"none"),)))),
}
WRITES: dict[str, Operation] = {
    "put": Put(b"a", b"1"),
    "delete": Delete(b"a"),
    "delete_range": DeleteRange(b"a", None),
    "append": Append(b"a", b"1"),
    "add": Add(b"n", 1),
    "an inner put": Txn((), (), (Put(b"a", b"1"),)),
}


@pytest.mark.parametrize("name", READS)
def test_what_has_reads_in_all_branches_only_reads(name: str) -> None:
    assert only_reads(command_body(READS[name]))


@pytest.mark.parametrize("name", WRITES)
def test_one_write_in_any_branch_makes_it_a_command(name: str) -> None:
    """A transaction with a write in a branch is a command even if that branch is not taken, because the sender cannot
    know which branch is taken."""
    write = WRITES[name]
    for txn in (Txn((), (write,)), Txn((), (), (Get(b"a"), write)), Txn((), (Txn((), (Get(b"a"),), (write,)),))):
        assert not only_reads(command_body(txn))


async def last_index(store: EmbeddedStore) -> int:
    return (await store.status()).last_index


@pytest.mark.parametrize("name", READS)
async def test_a_read_leaves_no_entry_and_has_the_result_of_the_command(name: str, tmp_path: Path) -> None:
    async with open_node(tmp_path / "data", bootstrap=True) as store:
        await store.put("a", "1")
        await store.put("b", "1")
        await store.put("a", "2")
        before, txn = await last_index(store), READS[name]
        result = await store.txn(txn.compares, txn.success, txn.failure)
        assert await last_index(store) == before

        response = await store.ask(command_request(txn))
        assert await last_index(store) == before + 1
        assert result == read_result((response.code, response.revision, *response.fields))


async def test_a_read_is_refused_as_the_command_is(tmp_path: Path) -> None:
    async with open_node(tmp_path / "data", bootstrap=True) as store:
        for name in "abcd":
            await store.put(name, bytes(MIB - 1024))
        await store.compact(5)
        before = await last_index(store)
        with pytest.raises(ResponseTooLarge):
            await store.txn(success=[Get(b"a"), Get(b"b"), Get(b"c"), Get(b"d")])
        with pytest.raises(RevisionCompacted):
            await store.txn(success=[Get(b"a", 2)])
        assert await last_index(store) == before


async def test_a_read_may_have_any_consistency(tmp_path: Path) -> None:
    async with open_node(tmp_path / "data", bootstrap=True) as store:
        await store.put("a", "1")
        before = await last_index(store)
        for wanted, told in (("linearizable", "linearizable"), ("follower", "linearizable"), ("local", "local")):
            answer = await store.execute(READS["a get"], consistency=wanted)
            assert answer.consistency == told  # A leader answers a follower read as if it were a linearizable read.
            assert isinstance(answer.result, TxnResult)
            assert isinstance(answer.result.results[0], GetResult)
        assert await last_index(store) == before


async def test_a_member_of_an_older_build_gets_it_as_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member of an older build refuses a transaction as a read, because it knows only gets and ranges as reads."""
    async with open_node(tmp_path / "data", bootstrap=True) as store:
        await store.put("a", "1")
        monkeypatch.setattr(request_judge, "only_reads", lambda body: body[0] != 6)
        before = await last_index(store)
        result = await store.txn(success=[Get(b"a")])
        assert isinstance(result.results[0], GetResult)
        assert await last_index(store) == before + 1


def test_a_write_is_no_read_whatever_its_sender_says(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 1)
    cluster.leader()
    client = RawClient(cluster)
    for consistency in (Consistency.LINEARIZABLE, Consistency.LOCAL, Consistency.FOLLOWER):
        response = client.ask(encode_request(7, read_request(Txn((), (Put(b"a", b"1"),)), consistency)))
        assert response.code == Code.UNSUPPORTED
    client.send(frame(encode_request(8, read_request(Txn((), (Get(b"a"),)), Consistency.LOCAL))))
    assert cluster.hosts["s1"].machine.revision == 1


BOTH = Txn((), (Get(b"a"), Get(b"b")))
"""Two keys that are always written together."""


def numbers(result: object) -> tuple[int, int]:
    assert isinstance(result, TxnResult)
    first, second = result.results
    assert isinstance(first, GetResult)
    assert isinstance(second, GetResult)
    values = [int(each.record.value) if each.record else 0 for each in (first, second)]
    return values[0], values[1]


@pytest.mark.parametrize("seed", range(8))
def test_reads_are_linearizable_while_leaders_are_cut_off(tmp_path: Path, seed: int) -> None:
    """Each read sees at least the writes that were acknowledged before the read was sent, and at most the writes that
    were sent before the read was answered. The read sees both keys as of one moment, and adds no entry to the log."""
    random, cluster = Random(seed), Cluster(tmp_path, 3)
    cluster.leader()
    writer, readers = cluster.client(), [cluster.client(ttl_ns=0) for _ in range(2)]
    acknowledged = sent = answered = 0
    open_reads: list[tuple[int, int, int]] = []  # (reader, ticket, the least number that the read may see).

    def check_answers() -> None:
        nonlocal answered
        for place, ticket, least in list(open_reads):
            ended = readers[place].ended.get(ticket)
            if ended is None:
                continue
            open_reads.remove((place, ticket, least))
            if ended.response is None:
                assert isinstance(ended.error, StoreError)
                assert not isinstance(ended.error, OutcomeUnknown)
                continue
            response = ended.response
            first, second = numbers(read_result((response.code, response.revision, *response.fields)))
            assert first == second
            assert least <= first <= sent, (least, first, sent)
            answered += 1

    for _ in range(40):
        for place, reader in enumerate(readers):
            ticket = reader.submit(read_request(BOTH, Consistency.LINEARIZABLE), 3)
            open_reads.append((place, ticket, acknowledged))
        sent += 1
        puts = (Put(b"a", b"%d" % sent), Put(b"b", b"%d" % sent))
        try:
            writer.do(Txn((), puts), seconds=3)
            acknowledged = sent
        except (Unavailable, OutcomeUnknown):
            pass
        check_answers()
        if random.random() < 0.3:
            cluster.cut = {cluster.leader()} if not cluster.cut else set()
        cluster.wait(random.uniform(0, 0.5))
        check_answers()
    cluster.cut = set()
    cluster.wait(4)
    check_answers()
    assert not open_reads
    assert answered > 40
    assert acknowledged > 20
    node = cluster.hosts[cluster.leader()].node
    entries = [each for each in node.read_log(1, 1 << 30) if each.kind is EntryKind.COMMANDS]
    bodies = [command[3:] for each in entries for command in decode_payload(each.payload)[1][1:]]
    assert not [body for body in bodies if body[0] == CommandKind.TXN and only_reads(body)]

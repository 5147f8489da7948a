"""etcdctl: keys, ranges, old revisions, transactions and compaction."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence

import pytest

from tests.process.etcd.etcdctl import Etcdctl

pytestmark = [pytest.mark.process, pytest.mark.timeout(100)]


@pytest.fixture
def etcdctl(etcd_endpoints: Sequence[str]) -> Etcdctl:
    return Etcdctl(etcd_endpoints[:1])


def text(encoded: str) -> str:
    return b64decode(encoded).decode()


def test_a_value_is_read_as_it_was_put(etcdctl: Etcdctl, prefix: str) -> None:
    assert etcdctl("put", f"{prefix}k", "one") == "OK\n"
    assert etcdctl.lines("get", f"{prefix}k") == [f"{prefix}k", "one"]
    assert etcdctl.lines("put", f"{prefix}k", "two", "--prev-kv") == ["OK", f"{prefix}k", "one"]
    assert etcdctl("get", f"{prefix}absent") == ""


def test_every_member_serves_reads_and_writes(etcd_endpoints: Sequence[str], prefix: str) -> None:
    """A follower answers a linearizable read with what another member has confirmed before."""
    for number, endpoint in enumerate(etcd_endpoints):
        Etcdctl([endpoint])("put", f"{prefix}k", str(number))
        for other in etcd_endpoints:
            assert Etcdctl([other]).lines("get", f"{prefix}k", "--print-value-only") == [str(number)]


def test_values_are_any_bytes(etcdctl: Etcdctl, prefix: str) -> None:
    """The value comes from stdin. It contains what is special in texts, and a character beyond ASCII."""
    value = 'a\tb\n"c"\\ü\x01'

    etcdctl("put", f"{prefix}k", stdin=value)

    (found,) = etcdctl.json("get", f"{prefix}k")["kvs"]
    assert text(found["value"]) == value


def test_an_empty_value_is_a_value(etcdctl: Etcdctl, prefix: str) -> None:
    """JSON leaves out the empty value, as protobuf does, but the key is there."""
    etcdctl("put", f"{prefix}k", "")

    (found,) = etcdctl.json("get", f"{prefix}k")["kvs"]
    assert "value" not in found
    assert found["version"] == 1


def test_metadata_tells_the_life_of_a_key(etcdctl: Etcdctl, prefix: str) -> None:
    """A key that is created again begins with version 1 and a new creation revision."""
    first = etcdctl.put(f"{prefix}k", "a")
    second = etcdctl.put(f"{prefix}k", "b")
    etcdctl("del", f"{prefix}k")
    third = etcdctl.put(f"{prefix}k", "c")

    def seen(revision: int) -> tuple[int, int, int]:
        (found,) = etcdctl.json("get", f"{prefix}k", f"--rev={revision}")["kvs"]
        return found["create_revision"], found["mod_revision"], found["version"]

    assert (second, third) == (first + 1, first + 3)
    assert [seen(first), seen(second), seen(third)] == [(first, first, 1), (first, second, 2), (third, third, 1)]
    assert etcdctl("get", f"{prefix}k", f"--rev={second + 1}") == ""


def test_a_read_does_not_move_the_revision(etcdctl: Etcdctl, prefix: str) -> None:
    revision = etcdctl.put(f"{prefix}k", "a")

    answer = etcdctl.json("get", f"{prefix}k")

    assert answer["header"]["revision"] == revision
    assert answer["header"].keys() == {"cluster_id", "member_id", "revision", "raft_term"}
    assert all(answer["header"].values())
    assert etcdctl.json("del", f"{prefix}absent")["header"]["revision"] == revision


@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        (("--prefix", "{p}b"), "b1 b2 b3"),
        (("{p}a", "{p}b2"), "a b1"),
        (("{p}b2", "{p}b2"), ""),
        (("{p}b3", "{p}b1"), ""),
        (("--from-key", "{p}b2", "--limit=2"), "b2 b3"),
        (("--prefix", "{p}", "--limit=2", "--order=DESCEND"), "c b3"),
        (("--prefix", "{p}", "--limit=0"), "a b1 b2 b3 c"),
    ],
)
def test_ranges(etcdctl: Etcdctl, prefix: str, arguments: Sequence[str], keys: str) -> None:
    for name in ("b2", "a", "c", "b3", "b1"):
        etcdctl("put", prefix + name, "v")

    found = etcdctl.json("get", *(word.format(p=prefix) for word in arguments)).get("kvs", [])

    assert [text(each["key"]).removeprefix(prefix) for each in found] == keys.split()


@pytest.mark.parametrize("order", ["ASCEND", "DESCEND"])
@pytest.mark.parametrize(
    ("target", "keys"), [("KEY", "a b c"), ("VALUE", "b c a"), ("CREATE", "c a b"), ("MODIFY", "a b c"),
                         ("VERSION", "a c b")],
)  # fmt: skip
def test_sort_orders(etcdctl: Etcdctl, prefix: str, target: str, keys: str, order: str) -> None:
    for name, value in (("c", "x"), ("a", "z"), ("b", "x"), ("b", "y"), ("b", "u"), ("c", "w")):
        etcdctl("put", prefix + name, value)
    wanted = keys.split()

    found = etcdctl.lines("get", "--prefix", prefix, f"--sort-by={target}", f"--order={order}", "--keys-only")

    assert [line.removeprefix(prefix) for line in found if line] == (wanted if order == "ASCEND" else wanted[::-1])


def test_keys_only_values_only_and_count_only(etcdctl: Etcdctl, prefix: str) -> None:
    for name in "abc":
        etcdctl("put", prefix + name, f"value of {name}")

    assert etcdctl.lines("get", "--prefix", prefix, "--keys-only") == [
        f"{prefix}a", "", f"{prefix}b", "", f"{prefix}c", "",
    ]  # fmt: skip
    assert etcdctl.lines("get", "--prefix", prefix, "--print-value-only") == [f"value of {name}" for name in "abc"]
    fields = etcdctl.lines("get", "--prefix", prefix, "--count-only", "--write-out=fields")
    assert fields[-2:] == ['"More" : false', '"Count" : 3']


def test_a_limit_tells_that_there_is_more_and_how_many_there_are_in_all(etcdctl: Etcdctl, prefix: str) -> None:
    for name in "abc":
        etcdctl("put", prefix + name, "v")

    some = etcdctl.json("get", "--prefix", prefix, "--limit=2")
    all_of_them = etcdctl.json("get", "--prefix", prefix, "--limit=3")

    assert (len(some["kvs"]), some["more"], some["count"]) == (2, True, 3)
    assert (len(all_of_them["kvs"]), all_of_them.get("more", False), all_of_them["count"]) == (3, False, 3)


def test_a_future_revision_cannot_be_read(etcdctl: Etcdctl, prefix: str) -> None:
    assert (
        etcdctl.error("get", f"{prefix}k", f"--rev={etcdctl.revision() + 1}")
        == "Error: etcdserver: mvcc: required revision is a future revision"
    )


def test_a_put_may_keep_the_value_or_the_lease(etcdctl: Etcdctl, prefix: str) -> None:
    lease = etcdctl.lease(60)
    etcdctl("put", f"{prefix}k", "a", f"--lease={lease}")

    etcdctl("put", f"{prefix}k", "b", "--ignore-lease")
    (found,) = etcdctl.json("get", f"{prefix}k")["kvs"]
    assert (text(found["value"]), found["lease"]) == ("b", int(lease, 16))

    etcdctl("put", f"{prefix}k", "--ignore-value")
    (found,) = etcdctl.json("get", f"{prefix}k")["kvs"]
    assert (text(found["value"]), found["version"], found.get("lease", 0)) == ("b", 3, 0)

    for arguments in ((f"{prefix}absent", "--ignore-value"), (f"{prefix}absent", "x", "--ignore-lease")):
        assert etcdctl.error("put", *arguments) == "Error: etcdserver: key not found"


def test_deletions(etcdctl: Etcdctl, prefix: str) -> None:
    for name in ("a", "b1", "b2", "b3", "z1", "z2"):
        etcdctl("put", prefix + name, f"v{name}")

    assert etcdctl.lines("del", f"{prefix}a", "--prev-kv") == ["1", f"{prefix}a", "va"]
    assert etcdctl.lines("del", f"{prefix}a", "--prev-kv") == ["0"]
    assert etcdctl.lines("del", f"{prefix}b1", f"{prefix}b3") == ["2"]
    before = etcdctl.revision()
    answer = etcdctl.json("del", "--prefix", prefix)
    assert (answer["deleted"], answer["header"]["revision"]) == (3, before + 1)
    assert etcdctl("get", "--prefix", prefix) == ""


def test_deletion_and_reading_from_a_key_on(own_endpoints: Sequence[str]) -> None:
    etcdctl = Etcdctl(own_endpoints[:1])
    for name in "abcd":
        etcdctl("put", name, "v")

    assert etcdctl.lines("get", "--from-key", "b", "--print-value-only", "--order=DESCEND") == ["v"] * 3
    assert etcdctl("del", "--from-key", "c") == "2\n"
    assert etcdctl.lines("get", "", "--prefix", "--keys-only") == ["a", "", "b", ""]
    assert etcdctl("del", "", "--prefix") == "2\n"


@pytest.mark.parametrize(
    ("comparison", "holds"),
    [
        ('value("{p}k") = "two"', True),
        ('value("{p}k") = "one"', False),
        ('value("{p}k") != "one"', True),
        ('value("{p}k") > "twn"', True),
        ('value("{p}k") < "two"', False),
        ('value("{p}absent") = ""', False),
        ('version("{p}k") = "2"', True),
        ('version("{p}k") > "2"', False),
        ('version("{p}k") < "3"', True),
        ('version("{p}k") != "2"', False),
        ('version("{p}absent") = "0"', True),
        ('create("{p}k") = "{create}"', True),
        ('create("{p}k") < "{create}"', False),
        ('create("{p}absent") = "0"', True),
        ('mod("{p}k") = "{mod}"', True),
        ('mod("{p}k") > "{create}"', True),
        ('mod("{p}k") != "{mod}"', False),
        ('mod("{p}absent") = "0"', True),
    ],
)
def test_comparisons_of_a_transaction(etcdctl: Etcdctl, prefix: str, comparison: str, holds: bool) -> None:
    """A key that is not there has version and revisions 0, and no comparison of its value holds."""
    create = etcdctl.put(f"{prefix}k", "one")
    mod = etcdctl.put(f"{prefix}k", "two")
    asked = comparison.format(p=prefix, create=create, mod=mod)

    lines = etcdctl.lines("txn", stdin=f"{asked}\n\nget {prefix}k\n\nget {prefix}absent\n\n")

    assert lines == (["SUCCESS", "", f"{prefix}k", "two"] if holds else ["FAILURE", ""])


def test_all_comparisons_must_hold(etcdctl: Etcdctl, prefix: str) -> None:
    etcdctl("put", f"{prefix}k", "one")
    asked = f'value("{prefix}k") = "one"\nversion("{prefix}k") = "{{version}}"\n\n\nput {prefix}failed yes\n\n'

    assert etcdctl.lines("txn", stdin=asked.format(version=1)) == ["SUCCESS"]
    assert etcdctl.lines("txn", stdin=asked.format(version=2))[0] == "FAILURE"
    assert etcdctl.lines("get", f"{prefix}failed", "--print-value-only") == ["yes"]


def test_a_transaction_is_one_revision(etcdctl: Etcdctl, prefix: str) -> None:
    """Each operation sees what the operations before it have written. The header of a part has only the revision."""
    before = etcdctl.put(f"{prefix}old", "x")
    steps = (
        f"\nput {prefix}a 1\nget {prefix}a\ndel {prefix}old\nget {prefix}old\nput {prefix}b 2\n"
        f"get --prefix {prefix}\n\n\n"
    )

    answer = etcdctl.json("txn", stdin=steps)

    assert answer["succeeded"] is True
    put_a, get_a, deleted, get_old, _put_b, get_all = (next(iter(r["Response"].values())) for r in answer["responses"])
    assert answer["header"]["revision"] == before + 1
    assert put_a == {"header": {"revision": before + 1}}
    assert (text(get_a["kvs"][0]["value"]), get_a["kvs"][0]["mod_revision"]) == ("1", before + 1)
    assert deleted["deleted"] == 1
    assert "kvs" not in get_old
    assert [(text(kv["key"]), kv["create_revision"], kv["mod_revision"]) for kv in get_all["kvs"]] == [
        (f"{prefix}a", before + 1, before + 1),
        (f"{prefix}b", before + 1, before + 1),
    ]


def test_a_transaction_that_only_reads_has_no_revision_of_its_own(etcdctl: Etcdctl, prefix: str) -> None:
    revision = etcdctl.put(f"{prefix}k", "1")

    assert etcdctl.json("txn", stdin=f"\nget {prefix}k\n\n\n")["header"]["revision"] == revision


@pytest.mark.parametrize("second", ["put {p}k 2", "del {p}k", "del --prefix {p}"])
def test_a_transaction_writes_a_key_once(etcdctl: Etcdctl, prefix: str, second: str) -> None:
    steps = f"\nput {prefix}k 1\n{second.format(p=prefix)}\n\n\n"

    assert etcdctl.error("txn", stdin=steps) == "Error: etcdserver: duplicate key given in txn request"
    assert etcdctl("get", f"{prefix}k") == ""


def test_the_branches_of_a_transaction_may_write_the_same_key(etcdctl: Etcdctl, prefix: str) -> None:
    steps = f'version("{prefix}k") = "0"\n\nput {prefix}k first\n\nput {prefix}k again\n\n'

    assert etcdctl.lines("txn", stdin=steps) == ["SUCCESS", "", "OK"]
    assert etcdctl.lines("txn", stdin=steps) == ["FAILURE", "", "OK"]
    assert etcdctl.lines("get", f"{prefix}k", "--print-value-only") == ["again"]


def test_compaction(own_endpoints: Sequence[str]) -> None:
    """The compacted revision itself can still be read; older ones cannot."""
    etcdctl = Etcdctl(own_endpoints[:1])
    revisions = [etcdctl.put("k", value) for value in ("a", "b", "c")]

    assert etcdctl("compaction", str(revisions[1])) == f"compacted revision {revisions[1]}\n"

    compacted = "Error: etcdserver: mvcc: required revision has been compacted"
    assert etcdctl.error("get", "k", f"--rev={revisions[0]}") == compacted
    assert etcdctl.lines("get", "k", f"--rev={revisions[1]}") == ["k", "b"]
    assert etcdctl.error("compaction", str(revisions[1])) == compacted
    assert etcdctl.error("compaction", str(revisions[0])) == compacted
    assert (
        etcdctl.error("compaction", str(revisions[2] + 1))
        == "Error: etcdserver: mvcc: required revision is a future revision"
    )
    assert etcdctl("compaction", str(revisions[2]), "--physical") == f"compacted revision {revisions[2]}\n"
    for endpoint in own_endpoints:
        assert Etcdctl([endpoint]).error("get", "k", f"--rev={revisions[1]}") == compacted


def test_keys_beyond_text(etcdctl: Etcdctl, prefix: str) -> None:
    """JSON of etcdctl encodes keys and values as base64, so nothing is lost."""
    etcdctl("put", f"{prefix}ключ", "значение")

    (found,) = etcdctl.json("get", "--prefix", prefix)["kvs"]
    assert found["key"] == b64encode(f"{prefix}ключ".encode()).decode()
    assert etcdctl.lines("get", f"{prefix}ключ", "--hex")[1].startswith("\\xd0\\xb7")

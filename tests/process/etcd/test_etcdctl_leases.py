"""etcdctl: leases, and the locks and elections that are built on them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.process.etcd.etcdctl import Etcdctl

pytestmark = [pytest.mark.process, pytest.mark.timeout(100)]


@pytest.fixture
def etcdctl(etcd_endpoints: Sequence[str]) -> Etcdctl:
    return Etcdctl(etcd_endpoints[:1])


def test_a_lease_is_granted_shown_and_revoked(etcdctl: Etcdctl, prefix: str) -> None:
    """The revocation deletes the keys of the lease, all of them at one revision."""
    words = etcdctl("lease", "grant", "600").split()
    lease = words[1]
    assert words == ["lease", lease, "granted", "with", "TTL(600s)"]
    assert int(lease, 16) > 0
    for name in "ba":
        etcdctl("put", prefix + name, "v", f"--lease={lease}")

    assert etcdctl("lease", "timetolive", lease).startswith(f"lease {lease} granted with TTL(600s), remaining(")
    told = etcdctl.json("lease", "timetolive", lease, "--keys")
    assert (told["id"], told["granted-ttl"], len(told["keys"])) == (int(lease, 16), 600, 2)
    assert 590 <= told["ttl"] <= 600
    attached = etcdctl("lease", "timetolive", lease, "--keys").partition("attached keys([")[2]
    assert set(attached.removesuffix("])\n").split()) == {f"{prefix}a", f"{prefix}b"}
    count, *leases = etcdctl.lines("lease", "list")
    assert lease in leases
    assert count == f"found {len(leases)} leases"

    before = etcdctl.revision()
    assert etcdctl("lease", "revoke", lease) == f"lease {lease} revoked\n"
    assert etcdctl.revision() == before + 1
    assert etcdctl("get", "--prefix", prefix) == ""
    assert lease not in etcdctl("lease", "list")


def test_granting_a_lease_does_not_move_the_revision(etcdctl: Etcdctl) -> None:
    before = etcdctl.revision()

    lease = etcdctl.lease(60)
    etcdctl("lease", "revoke", lease)

    assert etcdctl.revision() == before


def test_a_lease_that_is_not_there(etcdctl: Etcdctl, prefix: str) -> None:
    """Each command has its own words. `timetolive` counts it as expired, and succeeds."""
    missing = "etcdserver: requested lease not found"

    assert etcdctl("lease", "timetolive", "1234abcd") == "lease 000000001234abcd already expired\n"
    assert etcdctl.error("lease", "revoke", "1234abcd") == f"Error: failed to revoke lease ({missing})"
    assert etcdctl.error("lease", "keep-alive", "--once", "1234abcd") == f"Error: {missing}"
    assert etcdctl.error("put", f"{prefix}k", "v", "--lease=1234abcd") == f"Error: {missing}"
    assert etcdctl("get", f"{prefix}k") == ""


def test_a_lease_is_kept_alive(etcdctl: Etcdctl) -> None:
    lease = etcdctl.lease(60)

    assert etcdctl("lease", "keep-alive", "--once", lease) == f"lease {lease} keepalived with TTL(60)\n"
    with etcdctl.running("lease", "keep-alive", lease) as keeping:
        assert keeping.line() == f"lease {lease} keepalived with TTL(60)"


def test_any_member_keeps_a_lease_alive(etcd_endpoints: Sequence[str]) -> None:
    lease = Etcdctl(etcd_endpoints[:1]).lease(60)
    for endpoint in etcd_endpoints:
        etcdctl = Etcdctl([endpoint])
        assert etcdctl("lease", "keep-alive", "--once", lease) == f"lease {lease} keepalived with TTL(60)\n"
        assert "remaining(" in etcdctl("lease", "timetolive", lease)
        etcdctl.revision()  # This linearizable read waits until the member, which answers alone, has the lease.
        assert lease in etcdctl("lease", "list")


def test_a_lease_that_ends_takes_its_keys_with_it(etcdctl: Etcdctl, prefix: str) -> None:
    revision = etcdctl.revision()
    lease = etcdctl.lease(2)
    with etcdctl.running("watch", "--prefix", prefix, f"--rev={revision + 1}") as watch:
        etcdctl("put", f"{prefix}k", "v", f"--lease={lease}")
        assert watch.lines(3) == ["PUT", f"{prefix}k", "v"]
        assert watch.lines(3) == ["DELETE", f"{prefix}k", ""]
    assert etcdctl("lease", "timetolive", lease) == f"lease {lease} already expired\n"


def test_a_put_without_a_lease_frees_the_key(etcdctl: Etcdctl, prefix: str) -> None:
    first, second = etcdctl.lease(600), etcdctl.lease(600)
    etcdctl("put", f"{prefix}kept", "v", f"--lease={first}")
    etcdctl("put", f"{prefix}moved", "v", f"--lease={first}")
    etcdctl("put", f"{prefix}kept", "v")
    etcdctl("put", f"{prefix}moved", "v", f"--lease={second}")

    etcdctl("lease", "revoke", first)

    assert etcdctl.lines("get", "--prefix", prefix, "--keys-only") == [f"{prefix}kept", "", f"{prefix}moved", ""]
    assert f"attached keys([{prefix}moved])" in etcdctl("lease", "timetolive", second, "--keys")


def test_a_time_to_live_has_bounds(etcdctl: Etcdctl) -> None:
    """A server may lengthen a short time to live, and tells the client what it granted."""
    granted = etcdctl("lease", "grant", "1").split()[-1]

    assert int(granted.removeprefix("TTL(").removesuffix("s)")) >= 1
    assert (
        etcdctl.error("lease", "grant", "9000000001")
        == "Error: failed to grant lease (etcdserver: too large lease TTL)"
    )


def test_a_lock_is_held_by_one_after_the_other(etcdctl: Etcdctl, prefix: str) -> None:
    """The holder's key lies below the name of the lock. Ctrl-C ends the holder, and the next one gets the lock."""
    name = f"{prefix}lock"
    with etcdctl.running("lock", name) as first:
        key = first.line()
        assert key.startswith(f"{name}/")
        first.line()
        with etcdctl.running("lock", name) as second:
            while len(etcdctl.lines("get", "--prefix", f"{name}/", "--keys-only")) < 4:
                pass
            first.interrupt()
            other = second.line()
    assert other.startswith(f"{name}/")
    assert other != key


def test_a_command_runs_while_the_lock_is_held(etcdctl: Etcdctl, prefix: str) -> None:
    name = f"{prefix}lock"

    done = etcdctl.run("lock", name, "--", "sh", "-c", "echo $ETCD_LOCK_KEY $ETCD_LOCK_REV; exit 3")

    key, revision = done.out.split()
    assert key.startswith(f"{name}/")
    assert int(revision) <= etcdctl.revision()
    assert etcdctl("get", "--prefix", f"{name}/") == "", "the lock is free again"


def test_the_lock_of_a_killed_holder_is_freed_by_its_lease(etcdctl: Etcdctl, prefix: str) -> None:
    name = f"{prefix}lock"
    with etcdctl.running("lock", name, "--ttl=2") as first:
        first.lines(2)
    assert etcdctl("lock", name, "--", "echo", "held") == "held\n"


def test_an_election_has_one_leader_at_a_time(etcdctl: Etcdctl, prefix: str) -> None:
    name = f"{prefix}election"
    with etcdctl.running("elect", name, "ann") as ann:
        key, value = ann.lines(2)
        assert key.startswith(f"{name}/")
        assert value == "ann"
        with etcdctl.running("elect", "--listen", name) as listener, etcdctl.running("elect", name, "bob") as bob:
            assert listener.lines(2) == [key, "ann"]
            while len(etcdctl.lines("get", "--prefix", f"{name}/", "--keys-only")) < 4:
                pass
            ann.interrupt()
            assert bob.lines(2)[1] == "bob"
            assert listener.lines(2)[1] == "bob"


def test_a_lease_in_json(etcdctl: Etcdctl) -> None:
    granted = etcdctl.json("lease", "grant", "60")
    missing = etcdctl.json("lease", "timetolive", "1234", "--keys")

    assert granted["TTL"] == 60
    assert granted["ID"] > 0
    assert granted["ID"] in [each["id"] for each in etcdctl.json("lease", "list")["leases"]]
    assert (missing["ttl"], missing["granted-ttl"], missing["keys"]) == (-1, 0, None)

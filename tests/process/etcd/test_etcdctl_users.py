"""etcdctl: users, roles, permissions and passwords."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.process.etcd.etcdctl import Etcdctl
from tests.process.etcd.members import USES_REAL_ETCD

pytestmark = [pytest.mark.process, pytest.mark.timeout(100)]

DENIED = "Error: etcdserver: permission denied"
WRONG_PASSWORD = "Error: etcdserver: authentication failed, invalid user ID or password"


@pytest.fixture
def open_store(own_endpoints: Sequence[str]) -> Etcdctl:
    """etcdctl without a user, on a store that asks for none."""
    return Etcdctl(own_endpoints[:1])


def secured(endpoints: Sequence[str]) -> tuple[Etcdctl, Etcdctl, Etcdctl]:
    """Turn users on. Returns etcdctl of nobody, of root, and of ann, whose role permits little."""
    nobody = Etcdctl(endpoints[:1])
    nobody("user", "add", "root:pw")
    nobody("user", "grant-role", "root", "root")
    nobody("user", "add", "ann:secret")
    nobody("role", "add", "few")
    nobody("role", "grant-permission", "few", "read", "--prefix=true", "app/")
    nobody("role", "grant-permission", "few", "readwrite", "k1")
    nobody("role", "grant-permission", "few", "write", "r1", "r5")
    nobody("user", "grant-role", "ann", "few")
    nobody("put", "app/1", "one")
    assert nobody("auth", "enable") == "Authentication Enabled\n"
    for endpoint in endpoints:  # A member that does not know it yet would take a login for needless.
        while Etcdctl([endpoint]).run("get", "k1").code == 0:
            pass
    return nobody, Etcdctl(endpoints, "root:pw"), Etcdctl(endpoints, "ann:secret")


def test_users_and_roles_are_kept(open_store: Etcdctl) -> None:
    etcdctl = open_store
    assert etcdctl("auth", "status").startswith("Authentication Status: false\nAuthRevision: ")
    assert etcdctl("user", "add", "ann:secret") == "User ann created\n"
    assert etcdctl("user", "add", "bob", "--no-password") == "User bob created\n"
    assert etcdctl("role", "add", "few") == "Role few created\n"
    assert etcdctl("role", "grant-permission", "few", "read", "--prefix=true", "app/") == "Role few updated\n"
    assert etcdctl("role", "grant-permission", "few", "readwrite", "k1") == "Role few updated\n"
    assert etcdctl("role", "grant-permission", "few", "write", "r1", "r5") == "Role few updated\n"
    assert etcdctl("user", "grant-role", "ann", "few") == "Role few is granted to user ann\n"

    assert etcdctl.lines("user", "list") == ["ann", "bob"]
    assert etcdctl.lines("role", "list") == ["few"]
    assert etcdctl.lines("user", "get", "ann") == ["User: ann", "Roles: few"]
    permissions = ["Role few", "KV Read:", "\t[app/, app0) (prefix app/)", "\tk1", "KV Write:", "\tk1", "\t[r1, r5)"]
    assert etcdctl.lines("role", "get", "few") == permissions

    assert etcdctl("role", "revoke-permission", "few", "k1") == "Permission of key k1 is revoked from role few\n"
    assert "k1" not in etcdctl("role", "get", "few")
    assert etcdctl("user", "revoke-role", "ann", "few") == "Role few is revoked from user ann\n"
    assert etcdctl("role", "delete", "few") == "Role few deleted\n"
    assert etcdctl("user", "delete", "ann") == "User ann deleted\n"
    assert etcdctl.lines("user", "list") == ["bob"]


def test_errors_about_users_and_roles(open_store: Etcdctl) -> None:
    etcdctl = open_store
    etcdctl("user", "add", "ann:secret")
    etcdctl("role", "add", "few")

    assert etcdctl.error("user", "add", "ann:other") == "Error: etcdserver: user name already exists"
    assert etcdctl.error("role", "add", "few") == "Error: etcdserver: role name already exists"
    assert etcdctl.error("user", "get", "nobody") == "Error: etcdserver: user name not found"
    assert etcdctl.error("user", "delete", "nobody") == "Error: etcdserver: user name not found"
    assert etcdctl.error("role", "get", "none") == "Error: etcdserver: role name not found"
    assert etcdctl.error("role", "delete", "none") == "Error: etcdserver: role name not found"
    assert etcdctl.error("user", "grant-role", "ann", "none") == "Error: etcdserver: role name not found"
    assert etcdctl.error("user", "revoke-role", "ann", "few") == "Error: etcdserver: role is not granted to the user"
    assert (
        etcdctl.error("role", "revoke-permission", "few", "k")
        == "Error: etcdserver: permission is not granted to the role"
    )
    assert etcdctl.error("auth", "enable") == "Error: etcdserver: root user does not exist"


def test_the_client_gives_root_its_role(open_store: Etcdctl, own_endpoints: Sequence[str]) -> None:
    """etcdctl knows the error `root user does not have root role` by its text: it then creates the role, grants it, and
    tries again."""
    open_store("user", "add", "root:pw")

    assert open_store("auth", "enable") == "Authentication Enabled\n"
    assert Etcdctl(own_endpoints, "root:pw").lines("user", "get", "root") == ["User: root", "Roles: root"]


def test_a_user_may_do_what_its_roles_permit(own_endpoints: Sequence[str]) -> None:
    nobody, root, ann = secured(own_endpoints)

    assert ann.lines("get", "app/1") == ["app/1", "one"]
    assert ann.lines("get", "--prefix", "app/", "--print-value-only") == ["one"]
    assert ann("put", "k1", "v") == "OK\n"
    assert ann.lines("get", "k1") == ["k1", "v"]
    assert ann("put", "r3", "v") == "OK\n"
    for arguments in (
        ("put", "app/1", "x"), ("get", "k2"), ("get", "k1", "k3"), ("get", "r3"), ("put", "r5", "v"),
        ("get", "--from-key", "app/"), ("get", "--prefix", ""), ("del", "app/1"), ("del", "--prefix", "r"),
        ("put", "r3", "w", "--prev-kv"),
    ):  # fmt: skip
        assert ann.error(*arguments) == DENIED, arguments
    assert nobody.error("get", "k1") == "Error: etcdserver: user name is empty"
    assert root.lines("get", "--prefix", "", "--keys-only") == ["app/1", "", "k1", "", "r3", ""]


def test_a_transaction_needs_all_its_permissions(own_endpoints: Sequence[str]) -> None:
    """Comparisons need the permission to read, and both branches count."""
    _, root, ann = secured(own_endpoints)

    assert ann.lines("txn", stdin='version("k1") = "0"\n\nput k1 v\n\nget app/1\n\n') == ["SUCCESS", "", "OK"]
    for steps in (
        'version("k9") = "0"\n\nput k1 w\n\n\n',
        'version("k1") > "0"\n\nput k1 w\nput k9 w\n\n\n',
        'version("k1") > "0"\n\nget k1\n\nget k9\n\n',
    ):
        assert ann.error("txn", stdin=steps) == DENIED, steps
    assert root.lines("get", "k1") == ["k1", "v"]


@pytest.mark.skipif(USES_REAL_ETCD, reason="etcd 3.5.1 writes: only the member that was asked checks the reads")
@pytest.mark.parametrize("steps", ["\nput k1 w\nget k9\n\n\n", "\nput k1 w\n\nget k9\n\n"])
def test_a_denied_transaction_writes_nothing_anywhere(own_endpoints: Sequence[str], steps: str) -> None:
    _, _, ann = secured(own_endpoints)
    ann("put", "k1", "v")

    assert ann.error("txn", stdin=steps) == DENIED

    for endpoint in own_endpoints:
        assert Etcdctl([endpoint], "root:pw").lines("get", "k1") == ["k1", "v"]


def test_a_watch_needs_the_permission_to_read(own_endpoints: Sequence[str]) -> None:
    _, root, ann = secured(own_endpoints)
    revision = root.put("app/1", "two")

    done = ann.run("watch", "k9", f"--rev={revision}")
    assert done.err.splitlines()[-2:] == [
        "watch was canceled (rpc error: code = PermissionDenied desc = etcdserver: permission denied)",
        "Error: watch is canceled by the server",
    ]
    with ann.running("watch", "--prefix", "app/", f"--rev={revision}") as watch:
        assert watch.lines(3) == ["PUT", "app/1", "two"]


def test_a_lease_of_foreign_keys_cannot_be_ended(own_endpoints: Sequence[str]) -> None:
    """To revoke a lease deletes its keys, so it needs the permission to write them. Nor can a key join such a lease."""
    _, root, ann = secured(own_endpoints)
    lease = root.lease(600)
    root("put", "secret", "v", f"--lease={lease}")

    assert ann.error("lease", "revoke", lease) == "Error: failed to revoke lease (etcdserver: permission denied)"
    assert ann.error("put", "k1", "v", f"--lease={lease}") == DENIED
    own = ann.lease(600)
    assert ann("put", "k1", "v", f"--lease={own}") == "OK\n"
    assert ann("lease", "revoke", own) == f"lease {own} revoked\n"
    assert root.lines("get", "secret", "--print-value-only") == ["v"]


def test_only_root_manages_users_and_members(own_endpoints: Sequence[str]) -> None:
    """A user may see itself and its roles, and ask for members and health."""
    nobody, root, ann = secured(own_endpoints)

    for arguments in (
        ("user", "list"), ("user", "get", "root"), ("user", "add", "eve:x"), ("role", "list"), ("auth", "disable"),
        ("auth", "status"), ("user", "delete", "ann"),
    ):  # fmt: skip
        assert ann.error(*arguments) == DENIED, arguments
    assert ann.lines("user", "get", "ann") == ["User: ann", "Roles: few"]
    assert ann.lines("role", "get", "few")[0] == "Role few"
    assert len(ann.lines("member", "list")) == len(own_endpoints)
    assert len(ann.lines("endpoint", "health")) == len(own_endpoints), "denied is healthy"
    assert nobody.error("endpoint", "health") == "Error: unhealthy cluster"
    assert root("auth", "status").startswith("Authentication Status: true\n")


def test_passwords(own_endpoints: Sequence[str]) -> None:
    """A wrong password and an unknown name have the same text. A changed password ends the old one."""
    _, root, ann = secured(own_endpoints)

    assert Etcdctl(own_endpoints, "ann:wrong").error("get", "k1") == WRONG_PASSWORD
    assert Etcdctl(own_endpoints, "nobody:secret").error("get", "k1") == WRONG_PASSWORD
    assert root("user", "passwd", "ann", "--interactive=false", stdin="new\n") == "Password updated\n"
    assert ann.error("get", "k1") == WRONG_PASSWORD
    assert Etcdctl(own_endpoints, "ann:new")("get", "k1") == ""
    for endpoint in own_endpoints:
        assert Etcdctl([endpoint], "ann:new")("put", "k1", "v") == "OK\n"


def test_a_revoked_role_permits_nothing_more(own_endpoints: Sequence[str]) -> None:
    _, root, ann = secured(own_endpoints)
    ann("put", "k1", "v")

    root("role", "revoke-permission", "few", "k1")
    assert ann.error("get", "k1") == DENIED
    assert ann.lines("get", "app/1") == ["app/1", "one"]
    root("user", "revoke-role", "ann", "few")
    assert ann.error("get", "app/1") == DENIED
    root("user", "delete", "ann")
    assert ann.error("get", "app/1") == WRONG_PASSWORD


def test_root_stays_while_users_are_on(own_endpoints: Sequence[str]) -> None:
    nobody, root, _ = secured(own_endpoints)

    for arguments in (("user", "delete", "root"), ("user", "revoke-role", "root", "root"), ("role", "delete", "root")):
        assert root.error(*arguments) == "Error: etcdserver: invalid auth management"
    assert root("auth", "disable") == "Authentication Disabled\n"
    assert nobody("put", "k9", "v") == "OK\n"
    assert nobody("user", "delete", "root") == "User root deleted\n"


def test_a_password_is_not_asked_for_while_users_are_off(open_store: Etcdctl, own_endpoints: Sequence[str]) -> None:
    """The server answers the login that it has no users in force, and the client goes on without."""
    open_store("put", "k", "v")

    assert Etcdctl(own_endpoints, "ann:whatever").lines("get", "k") == ["k", "v"]


def test_members_refuse_their_maintenance_to_users(own_endpoints: Sequence[str]) -> None:
    _, root, ann = secured(own_endpoints)

    assert ann.run("defrag").code != 0
    assert "permission denied" in ann.run("defrag").err
    assert root.lines("defrag")[0].startswith("Finished defragmenting etcd member[")

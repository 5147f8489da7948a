"""`hwm import-etcd`: begins a new cluster with the records of a snapshot file of etcd."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from kvstore.cli.common import print_json
from kvstore.cli.daemon.process import failure_of_member
from kvstore.cli.daemon.serve import folder_options
from kvstore.cli.output import OPERATION, say
from kvstore.etcd.snapshot.to_store import ImportSummary
from kvstore.member.config import MemberConfig
from kvstore.member.etcd_import import import_etcd_folder
from kvstore.member.restore import REVISION_LEAP_MAX
from raft import Member


@click.command("import-etcd")
@click.argument("snapshot", type=click.Path(path_type=Path, readable=False), metavar="SNAPSHOT")
@folder_options
@click.option(
    "--revision-leap",
    type=click.IntRange(0, REVISION_LEAP_MAX),
    default=None,
    help="Add this number to the revision of SNAPSHOT, because clients may remember later revisions of etcd. Give the "
    "same number on all members. 0 keeps the revision, and is safe only if SNAPSHOT has every write of etcd.  "
    "[default: 2^32]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")
def import_etcd(
    snapshot: Path,
    folder: Path,
    node_id: str | None,
    members: tuple[Member, ...],
    cluster_token: str,
    revision_leap: int | None,
    as_json: bool,
) -> None:
    """Make DIR the data folder of a member of a new cluster that begins with the keys in SNAPSHOT, a file of etcd 3.

    SNAPSHOT comes from `etcdctl snapshot save`, or is the file member/snap/db of an etcd that was stopped. Run the
    command once for each member, with the same SNAPSHOT, the same --member list and the same --cluster-token. Without
    --member, the new cluster has one member. Then start each member with `hwm serve DIR --etcd`.

    The keys keep their create revision, mod revision, version and lease. Leases keep their ids, and begin with their
    full times to live. Older versions of keys are not imported: a read or a watch of an older revision is answered with
    "compacted". The revision leaps, because SNAPSHOT may lack the last writes of etcd. With the leap, no revision is
    used twice. So a watch that continues from any revision of etcd is answered with "compacted", too, instead of
    missing changes, and fences do not repeat.

    Users and roles are imported with their rights, but without passwords, because etcd's hashes cannot be verified
    here. Authentication is off: set passwords with `hwm user password NAME`, and then run `hwm auth enable`.

    \b
    Exit codes: 0 made; 2 wrong options; 3 nothing was made (SNAPSHOT is damaged
    or cannot be read, DIR is not empty or cannot be written).
    """
    try:
        config = MemberConfig(folder=folder, node_id=node_id, members=members or None, cluster_token=cluster_token)
        imported = import_etcd_folder(config, snapshot, revision_leap)
    except Exception as error:
        raise failure_of_member(error, folder) from error
    OPERATION.is_done = True
    identity, contents = imported.identity, imported.contents
    if as_json:
        ids = {"node_id": identity.node_id, "cluster_id": identity.cluster_id.hex()}
        print_json({"folder": str(folder), **ids, "revision": imported.revision, **asdict(contents)})
    else:
        say(
            f"{folder}: member {identity.node_id} of the new cluster {identity.cluster_id.hex()}, revision "
            f"{imported.revision} (etcd had {contents.etcd_revision}), {contents.keys} keys, {contents.leases} leases, "
            f"{contents.users} users, {contents.roles} roles"
        )
    for words in contents.warnings:
        say(f"warning: {words}")
    if words := _what_becomes_of_users(contents):
        say(words)


def _what_becomes_of_users(contents: ImportSummary) -> str:
    if not contents.users:
        return ""
    remedy = "the users have no passwords here: set them in the new cluster (`hwm user password NAME`)"
    if contents.turned_off_auth:
        return f"warning: authentication is off in the new cluster; {remedy}, and then run `hwm auth enable`"
    return remedy

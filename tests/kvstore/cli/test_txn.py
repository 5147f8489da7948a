"""`hwm txn` with the forms of feature level 2: the output of the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import trio
from click.testing import CliRunner, Result

from kvstore import open_node
from kvstore.cli.common import ExitCode
from kvstore.cli.main import cli


def run(folder: Path, *documents: Any, level: int = 2) -> list[Result]:
    """Run transactions one after the other, against a store of one member in which the lease 7 exists."""

    def work(address: str) -> list[Result]:
        return [CliRunner().invoke(cli, ["txn", json.dumps(each), "--endpoints", address]) for each in documents]

    results: list[Result] = []

    async def main() -> None:
        node = open_node(folder / "data", bootstrap=True, feature_level=level, listen_client="127.0.0.1:0")
        async with node as store:
            if level > 1:
                await store.lease_grant(60, lease_id=7)
            results.extend(await trio.to_thread.run_sync(work, store.client_address))

    trio.run(main)
    return results


def test_each_operation_shows_its_result(tmp_path: Path) -> None:
    first, second, third = run(
        tmp_path,
        {
            "success": [
                {"op": "put", "key": "p/1", "value": "x", "lease_id": 7},
                {"op": "put", "key": "n", "value": "5"},
            ]
        },
        {
            "success": [
                {"op": "put", "key": "p/1", "value": "y", "previous": True, "keep_lease": True},
                {"op": "get", "key": "p/1", "revision": 2},
                {"op": "add", "key": "n", "delta": -7},
                {"op": "append", "prefix": "log/", "value": "z"},
            ]
        },
        {"success": [{"op": "delete_range", "prefix": "p/", "previous": True}]},
    )

    assert json.loads(first.stdout)["revision"] == 2
    old = {"value": "x", "create_revision": 2, "mod_revision": 2, "version": 1, "lease_id": 7}
    assert json.loads(second.stdout)["results"] == [
        {"op": "put", "previous": old},
        {"op": "get", "found": True, **old},
        {"op": "add", "number": -2},
        {"op": "append", "key": "log/\0\0\0\0\0\0\0\x03"},
    ]
    (removed,) = json.loads(third.stdout)["results"]
    assert removed["count"] == 1
    assert [each["key"] for each in removed["previous"]] == ["p/1"]
    assert removed["previous"][0]["lease_id"] == 7


def test_an_inner_transaction_shows_which_branch_it_took(tmp_path: Path) -> None:
    any_key = {"prefix": "p/", "op": ">", "target": "version", "value": 0}
    put = {"op": "put", "key": "p/1", "value": "x"}
    inner = {"op": "txn", "compares": [any_key], "success": [{"op": "get", "key": "p/1"}], "failure": [put]}
    first, second = run(tmp_path, {"success": [inner]}, {"compares": [any_key], "success": [inner]})

    assert (first.exit_code, second.exit_code) == (0, 0)
    assert json.loads(first.stdout)["results"] == [{"op": "txn", "succeeded": False, "results": [{"op": "put"}]}]
    (taken,) = json.loads(second.stdout)["results"]
    assert taken["succeeded"]
    assert taken["results"][0]["value"] == "x"


def test_a_lower_level_says_what_to_do(tmp_path: Path) -> None:
    (refused,) = run(tmp_path, {"success": [{"op": "add", "key": "n", "delta": 1}]}, level=1)

    assert refused.exit_code == ExitCode.FAILED
    assert "this needs feature level 2" in refused.stderr

"""What `hwm snapshot save` says when it cannot: a remedy, and none that has been tried just now."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from kvstore.cli import cli
from kvstore.cli_common import ExitCode

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def silent() -> Iterator[str]:
    """An address where nobody listens, and nobody else will."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield "{}:{}".format(*held.getsockname())


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    ("existing", "by_name", "is_offered"),
    [(False, False, True), (True, False, True), (False, True, True), (True, True, False)],
)
def test_a_save_of_one_member_alone_is_offered_only_to_who_has_not_asked_for_it(
    silent: str, *, as_json: bool, existing: bool, by_name: bool, is_offered: bool
) -> None:
    """Without a majority it is the way; where that one does not answer, either, it is none."""
    options = ["--existing"] * existing + ["--member", silent] * by_name + ["--json"] * as_json

    done = CliRunner().invoke(
        cli, ["snapshot", "save", "file", *options, "--endpoints", silent, "--deadline", "0.2", "--wait", "1"]
    )

    assert done.exit_code == ExitCode.UNAVAILABLE, done.output
    said = json.loads(done.stdout)["error"]["hint"] if as_json else done.stderr
    assert "check the addresses" in said
    assert ("--existing --member HOST:PORT" in said) == is_offered

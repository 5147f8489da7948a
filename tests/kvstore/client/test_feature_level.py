"""`hwm upgrade`, and the call that it uses, against a member in this process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner, Result

from kvstore import LevelRefused, MemberStatus, StoreError
from kvstore.cli.cluster.status import could_be_raised
from kvstore.cli.common import ExitCode
from kvstore.cli.main import cli
from kvstore.client.client import Client
from kvstore.client.feature_level import raise_feature_level
from kvstore.errors import Unavailable
from tests.kvstore.client.test_client import a_store_of_one

pytestmark = [pytest.mark.timeout(60)]


async def test_a_level_that_no_build_knows_is_refused_and_the_highest_known_is_in_force(tmp_path: Path) -> None:
    async with a_store_of_one(tmp_path, feature_level=1) as address, Client([address]) as client:
        assert await raise_feature_level(client) == 3
        with pytest.raises(LevelRefused, match="s1 knows 1 to 3, not 4; upgrade every member first") as refused:
            await raise_feature_level(client, 4)
        assert refused.value.reason == "unknown_level"
        with pytest.raises(LevelRefused, match="level 3 is in force, and a level never falls") as refused:
            await raise_feature_level(client, 1)
        assert refused.value.reason == "final"


async def test_the_command_prints_the_level_or_why_not(tmp_path: Path) -> None:
    """A refused upgrade ends with an exit code which means that nothing has changed."""
    async with a_store_of_one(tmp_path, feature_level=1) as address:

        def upgrade(*options: str) -> Result:
            return CliRunner().invoke(cli, ["upgrade", "--endpoints", address, *options])

        done = await trio.to_thread.run_sync(upgrade)
        assert (done.exit_code, done.stdout) == (0, "3\n")
        done = await trio.to_thread.run_sync(upgrade, "--json")
        assert json.loads(done.stdout) == {"feature_level": 3}
        done = await trio.to_thread.run_sync(upgrade, "--level", "4")
        assert done.exit_code == ExitCode.FAILED
        assert "the feature level is not raised: s1 knows 1 to 3, not 4" in done.stderr
        assert "hint: `hwm status` shows the level in force" in done.stderr


def test_the_status_says_when_the_level_could_be_raised() -> None:
    """The level can be raised after all members have answered, if all of them know a higher level than the one in
    force."""
    numbers = dict.fromkeys(MemberStatus.__dataclass_fields__, 0)

    def status(level: int, highest: int) -> MemberStatus:
        return MemberStatus(**{**numbers, "feature_level": level, "feature_level_max": highest})  # type: ignore[arg-type]

    silent: StoreError = Unavailable("it is down")
    assert could_be_raised([status(1, 3), status(1, 2)]) == 2
    assert could_be_raised([status(1, 3), status(1, 1)]) is None
    assert could_be_raised([status(1, 2), status(2, 2)]) is None
    assert could_be_raised([status(1, 2), silent]) is None
    assert could_be_raised([silent]) is None

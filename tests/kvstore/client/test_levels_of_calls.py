"""The methods of a client at each acknowledgement level: what they return, and the types that a type checker sees.

See docs/reference/specification.md#910-acknowledgement-levels.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, assert_type

import pytest

from kvstore import (
    Accepted,
    Acknowledge,
    CompareAndSetResult,
    EntryFate,
    OperationFailed,
    OutcomeUnknown,
    PutResult,
    Txn,
    UnderReplicated,
    open_node,
)

pytestmark = [pytest.mark.timeout(60)]

NONE, LEADER, MAJORITY, IN_SYNC = Acknowledge


async def test_the_type_of_an_answer_follows_from_the_level(tmp_path: Path) -> None:
    """mypy makes the checks of `assert_type`, and the test makes the others."""
    async with open_node(tmp_path / "data", bootstrap=True) as store:
        accepted = assert_type(await store.put("a", "1", acknowledge=Acknowledge.LEADER), Accepted)
        assert await store.outcome_of(accepted.index, accepted.term, wait_seconds=5) is EntryFate.COMMITTED
        await store.put("a", "2", acknowledge=Acknowledge.NONE)
        usual = assert_type(await store.put("a", "3"), PutResult)
        assert usual.acknowledged_by == ()
        confirmed = assert_type(await store.put("a", "4", acknowledge=Acknowledge.IN_SYNC), PutResult)
        assert confirmed.acknowledged_by == (store.node_id,)
        written = assert_type(await store.txn((), (), (), acknowledge=Acknowledge.LEADER), Accepted)
        assert written.index > accepted.index
        for level in Acknowledge:  # A level that is known only at run time.
            found = assert_type(await store.put("a", "5", acknowledge=level), PutResult | Accepted | None)
            expected = {NONE: type(None), LEADER: Accepted}.get(level, PutResult)
            assert type(found) is expected


async def test_the_type_of_many_answers_follows_from_the_level(tmp_path: Path) -> None:
    async with open_node(tmp_path / "data", bootstrap=True) as store:
        pairs = {"a": "1", "b": "2"}
        early = await store.put_many(pairs, acknowledge=Acknowledge.LEADER)
        assert_type(early, list[Accepted | OperationFailed | OutcomeUnknown])
        assert [type(each) for each in early] == [Accepted, Accepted]
        silent = await store.put_many(pairs, acknowledge=Acknowledge.NONE)
        assert_type(silent, list[OperationFailed | OutcomeUnknown | None])
        assert silent == [None, None]
        confirmed = await store.put_many(pairs, acknowledge=Acknowledge.IN_SYNC, atomic=True)
        assert_type(confirmed, list[PutResult | OperationFailed | OutcomeUnknown | UnderReplicated])
        assert {each.acknowledged_by for each in confirmed if isinstance(each, PutResult)} == {(store.node_id,)}


async def test_a_deletion_that_did_not_match_names_its_holders_too(tmp_path: Path) -> None:
    async with open_node(tmp_path / "data", bootstrap=True) as store:
        await store.put("k", "1")
        refused = await store.compare_and_delete("k", "2", acknowledge=Acknowledge.IN_SYNC)
        assert_type(refused, CompareAndSetResult)
        assert (refused.succeeded, refused.acknowledged_by) == (False, (store.node_id,))
        deleted = await store.compare_and_delete("k", "1", acknowledge=Acknowledge.IN_SYNC)
        assert (deleted.succeeded, deleted.acknowledged_by) == (True, (store.node_id,))


@pytest.mark.parametrize("value", ["1", "2"])
async def test_under_replicated_has_the_result_of_the_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    """The test marks a real answer as under-replicated, because in a store of one member this cannot happen by
    itself."""
    async with open_node(tmp_path / "data", bootstrap=True) as store:
        await store.put("k", "1")
        write: Any = store._write

        async def under_replicated(txn: Txn, *arguments: Any) -> None:
            result = await write(txn, *arguments)
            raise UnderReplicated(result, result.acknowledged_by, 2)

        monkeypatch.setattr(store, "_write", under_replicated)
        with pytest.raises(UnderReplicated) as caught:
            await store.compare_and_delete("k", value, acknowledge=Acknowledge.IN_SYNC)
        result = caught.value.result
        assert isinstance(result, CompareAndSetResult)
        assert (result.succeeded, result.acknowledged_by) == (value == "1", (store.node_id,))

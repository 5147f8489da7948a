"""The line of contenders for a name: the requests and watches of a `Contender`. Waiting needs no polling and no
writes."""

from __future__ import annotations

from kvstore.errors import (
    Busy,
    LeaseLost,
    LeaseNotFound,
    LockLost,
    LockTimeout,
    OutcomeUnknown,
    RevisionCompacted,
    Unavailable,
)
from kvstore.protocol.commands import Range, Txn
from kvstore.protocol.results import KeyRecord, RangeResult, TxnResult
from kvstore.recipes.contender import Contender
from kvstore.recipes.store import KeyStore

PAUSE_SECONDS = 0.1
"""The pause before a transaction that got no response within its deadline is tried again. The tries end when the lease
is lost."""


async def obtain(store: KeyStore, contender: Contender, wait_seconds: float) -> None:
    """Join the line of a name, and wait until the contender is an owner. The caller must keep the lease alive during
    the wait.

    Raises LockTimeout after `wait_seconds` in the line, and LeaseLost if the lease has ended.
    """
    result = await repeat_until_answered(store, contender.lease_id, contender.join())
    if await _stands_first(store, contender, contender.joined(result), result.revision):
        return
    with store.loop.move_on_after(wait_seconds) as patience:
        revision = result.revision
        while True:
            await _until_one_is_gone(store, contender, revision)
            result = await repeat_until_answered(store, contender.lease_id, contender.look())
            revision = result.revision
            try:
                line = contender.looked(result)
            except LockLost as error:
                words = f"its key {contender.key!r:.80} was gone when its turn came"
                raise LeaseLost(contender.lease_id, words) from error
            if await _stands_first(store, contender, line, revision):
                return
    assert patience.cancelled_caught
    raise LockTimeout(contender.name, wait_seconds)


async def repeat_until_answered(store: KeyStore, lease_id: int, txn: Txn) -> TxnResult:
    """Send a transaction repeatedly until it gets a response. The transaction must be repeatable, as all transactions
    of contenders are. The caller must keep the lease alive during the call. If the lease is lost, the repetition
    ends."""
    while True:
        try:
            return await store.txn(txn.compares, txn.success, txn.failure)
        except LeaseNotFound as error:
            raise LeaseLost(lease_id, str(error)) from error
        except (OutcomeUnknown, Unavailable, Busy):
            await store.loop.sleep(PAUSE_SECONDS)


async def _stands_first(store: KeyStore, contender: Contender, page: RangeResult, revision: int) -> bool:
    """Record the contender's place in the line, whose first page is `page`. Returns True if the contender is an owner.

    The other pages of the line are read at `revision`."""
    return contender.stand(await whole_line(store, page, contender.end, revision))


async def whole_line(store: KeyStore, page: RangeResult, end: bytes, revision: int) -> list[KeyRecord]:
    """Return all records of a line, whose first page is `page`. The other pages are read at `revision`."""
    items = list(page.items)
    while page.more:
        page = await store.range(Range(items[-1].key + b"\0", end, keys_only=True, revision=revision))
        items += page.items
    return items


async def _until_one_is_gone(store: KeyStore, contender: Contender, revision: int) -> None:
    """Wait until the contender may have become an owner, and so has to look at the line again.

    If the name has one place, a contender watches only the key right before its own. So only one contender wakes when
    the owner leaves.
    """
    try:
        if contender.places == 1:
            async with store.watch(contender.before[-1], from_revision=revision + 1) as changes:
                async for change in changes:
                    if change.kind == "delete":
                        return
        async with store.watch(prefix=contender.start, from_revision=revision + 1) as changes:
            async for change in changes:
                if change.kind == "delete" and contender.gone(change.key):
                    return
    except RevisionCompacted:  # The history no longer contains the missed changes, so the line is read again.
        return

"""Decides, without I/O, which shares of a group a member gives up or takes.

The members are ordered by the time at which they joined. With n shares and m members, the first n mod m members have
one share more than the others. So no member has more than ceil(n / m) shares. A member that has too many shares gives
up the excess. A member that has too few shares takes shares without an owner. The store decides between members that
take the same share at the same time. So the shares are evenly divided once all members have read the same list of
members, and no share changes its owner without need.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShareMoves:
    """The next steps of a member: the numbers of the shares to give up, and the numbers of the shares to try to
    take."""

    give_up: tuple[int, ...] = ()
    take: tuple[int, ...] = ()


def target_of(rank: int, members: int, shares: int) -> int:
    """Return the number of shares, of all `shares`, that the member with this rank (from 0) should have."""
    assert 0 <= rank < members, (rank, members)
    return shares // members + (rank < shares % members)


def moves(
    own_lease: int, members: Sequence[int], shares: int, owned: Collection[int], held: Collection[int]
) -> ShareMoves:
    """Decide what the member with the lease `own_lease` does next.

    `members`: the leases of all members, in the order in which they joined. `owned`: the shares that have an owner, as
    the store shows. `held`: the shares that this member has, except those that it is already giving up.

    Raises ValueError if `own_lease` is not among `members`.
    """
    rank = members.index(own_lease)
    target = target_of(rank, len(members), shares)
    mine = sorted(held)
    if len(mine) > target:
        return ShareMoves(give_up=tuple(mine[target:]))
    # Members that join together begin at different shares, so that they seldom try to take the same share.
    first = rank * shares // len(members)
    order = [*range(first, shares), *range(first)]
    free = [share for share in order if share not in owned and share not in held]
    return ShareMoves(take=tuple(free[: target - len(mine)]))

"""Calls of a client about leases. Renewals that wait at the same time are sent together (`renewals`)."""

from __future__ import annotations

from abc import abstractmethod

from kvstore.client.leases.renewals import Renewals
from kvstore.errors import InvalidRequest, LeaseNotFound, Reason
from kvstore.limits import SECOND_NS, TIME_NS_MAX, AdmissionLimits
from kvstore.protocol.commands import Command, LeaseGrant, LeaseRenew, LeaseRevoke
from kvstore.protocol.lease_requests import (
    PAGE_LEASE_KEYS_MAX,
    PAGE_LEASES_MAX,
    LeaseDetails,
    LeasePage,
    decode_lease,
    decode_leases,
    lease_request,
    leases_request,
)
from kvstore.protocol.messages import Request, Response
from kvstore.protocol.results import Answer, LeaseGranted, LeaseRevoked, LeasesRenewed, Result, read_answer
from kvstore.wrong_forms import check_seconds

TTL_NS_MIN, TTL_NS_MAX = AdmissionLimits().lease_ttl_ns_min, AdmissionLimits().lease_ttl_ns_max
"""The bounds that a member has by default."""


class LeaseCalls:
    """The operations of a `Client` on leases. All lease operations need feature level 2. `Client` implements `ask`,
    `execute` and `renewals`."""

    @property
    @abstractmethod
    def renewals(self) -> Renewals:
        """The renewals of this client."""

    @abstractmethod
    async def ask(self, request: Request, deadline_seconds: float | None = None) -> Response:
        """Send a request; return the response of a member."""

    @abstractmethod
    async def execute(self, command: Command, *, deadline_seconds: float | None = None) -> Answer[Result]:
        """Carry out a command."""

    async def lease_grant(
        self, ttl_seconds: float, *, lease_id: int = 0, deadline_seconds: float | None = None
    ) -> LeaseGranted:
        """Grant a lease that ends unless it is renewed in time. If `lease_id` is 0, the store picks the id.

        Raises LeaseExists. (`Client.lease` grants a lease, and also renews and revokes it.)
        """
        check_seconds(ttl_seconds=ttl_seconds)
        grant = LeaseGrant(lease_id, _ttl_ns(ttl_seconds))
        try:
            answer = await self.execute(grant, deadline_seconds=deadline_seconds)
        except InvalidRequest as error:
            ttl_ns_max = error.size_max  # Only the bound of the time to live is a number.
            if ttl_ns_max is None or TTL_NS_MIN <= grant.ttl_ns <= ttl_ns_max:
                raise
            raise _out_of_range(ttl_seconds, ttl_ns_max) from error
        assert isinstance(answer.result, LeaseGranted), answer
        return answer.result

    async def lease_renew(self, lease_id: int, *, deadline_seconds: float | None = None) -> float:
        """Renew a lease, so that its time to live starts again. Returns this time to live in seconds. Raises
        LeaseNotFound.

        Renewals without `deadline_seconds` that wait at the same time are sent as one command, with the default
        deadline of the client. A renewal with `deadline_seconds` is sent as a command of its own.
        """
        if deadline_seconds is not None:
            (ttl_ns,) = (await self._renew((lease_id,), deadline_seconds)).ttls_ns
            if not ttl_ns:
                raise LeaseNotFound(lease_id)
            return ttl_ns / SECOND_NS
        return await self.renewals.renew(lease_id) / SECOND_NS

    async def lease_revoke(self, lease_id: int, *, deadline_seconds: float | None = None) -> LeaseRevoked:
        """End a lease and remove its keys, as one change. Raises LeaseNotFound."""
        answer = await self.execute(LeaseRevoke(lease_id), deadline_seconds=deadline_seconds)
        assert isinstance(answer.result, LeaseRevoked), answer
        return answer.result

    async def lease_time_to_live(self, lease_id: int, *, deadline_seconds: float | None = None) -> LeaseDetails | None:
        """The lease with its keys and its remaining time, as the leader knows it; None if the lease does not exist."""
        keys: list[bytes] = []
        while True:
            request = lease_request(lease_id, keys[-1] if keys else b"", PAGE_LEASE_KEYS_MAX)
            response = await self.ask(request, deadline_seconds)
            found, more = read_answer(
                response, lambda each: decode_lease(each, lease_id), has_effect=request.has_effect
            )
            if found is None:
                return None
            keys += found.keys
            if not more:
                return LeaseDetails(found.leader_time, lease_id, found.ttl_ns, found.deadline, tuple(keys))

    async def leases(
        self, *, after_id: int = 0, limit: int = PAGE_LEASES_MAX, deadline_seconds: float | None = None
    ) -> LeasePage:
        """One page of the leases with ids above `after_id`, ordered by id. A page has at most 500 leases."""
        request = leases_request(after_id, limit)
        response = await self.ask(request, deadline_seconds)
        return read_answer(response, decode_leases, has_effect=request.has_effect)

    async def _renew(self, lease_ids: tuple[int, ...], deadline_seconds: float | None = None) -> LeasesRenewed:
        answer = await self.execute(LeaseRenew(lease_ids), deadline_seconds=deadline_seconds)
        assert isinstance(answer.result, LeasesRenewed), answer
        return answer.result


def _ttl_ns(ttl_seconds: float) -> int:
    """Raises InvalidRequest for a time that no command can state."""
    if not 1 <= ttl_seconds * SECOND_NS <= TIME_NS_MAX:  # False for NaN, too.
        raise _out_of_range(ttl_seconds, TTL_NS_MAX)
    return round(ttl_seconds * SECOND_NS)


def _out_of_range(ttl_seconds: float, ttl_ns_max: int) -> InvalidRequest:
    least, greatest = TTL_NS_MIN / SECOND_NS, ttl_ns_max / SECOND_NS
    words = f"ttl_seconds is {ttl_seconds:,}, and a lease lives from {least:,} to {greatest:,} seconds"
    return InvalidRequest(Reason.OUT_OF_RANGE, text=words)

"""The renewals of leases of one user. Renewals that wait at the same time are sent as one command."""

from __future__ import annotations

from collections.abc import Callable

from kvstore.client.calls import CallEnded
from kvstore.errors import StoreError, Unavailable
from kvstore.etcd.coroutines import Abort, Resume
from kvstore.protocol.commands import LeaseRenew
from kvstore.protocol.messages import Request, command_request
from kvstore.protocol.results import LeasesRenewed, read_answer, read_result

RENEWALS_MAX = 1_000
"""The greatest number of leases that one command renews."""


class Renewer:
    """Renews leases. While a command is under way, further renewals gather for the next command. `submit` sends a
    request, and calls the function with its end."""

    def __init__(self, submit: Callable[[Request, Callable[[CallEnded], None]], object]) -> None:
        self._submit = submit
        self._waiting: list[tuple[int, Resume[int]]] = []
        self._is_busy = False

    def renew(self, lease_id: int, resume: Resume[int]) -> Abort:
        """Renew a lease with the next command, and resume with its time to live in ns; 0 if there is no such lease."""
        self._waiting.append((lease_id, resume))
        self._send()
        return resume.forget

    def _send(self) -> None:
        if self._is_busy or not self._waiting:
            return
        self._is_busy = True
        taken, self._waiting = self._waiting[:RENEWALS_MAX], self._waiting[RENEWALS_MAX:]
        ids = tuple(dict.fromkeys(lease_id for lease_id, _ in taken))

        def ended(end: CallEnded) -> None:
            self._is_busy = False
            try:
                ttls = dict(zip(ids, _ttls_of(end), strict=True))
            except (StoreError, ValueError) as error:
                for _, resume in taken:
                    resume.error(error if isinstance(error, StoreError) else Unavailable(str(error)))
            else:
                for lease_id, resume in taken:
                    resume.value(ttls[lease_id])
            self._send()

        self._submit(command_request(LeaseRenew(ids)), ended)


def _ttls_of(end: CallEnded) -> tuple[int, ...]:
    if end.error is not None:
        raise end.error
    assert end.response is not None, end
    result = read_answer(
        end.response, lambda each: read_result((each.code, each.revision, *each.fields)), has_effect=True
    )
    assert isinstance(result, LeasesRenewed), result
    return result.ttls_ns

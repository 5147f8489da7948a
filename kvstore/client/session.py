"""The session of a client. It is registered for the first command, kept alive, and replaced after it has expired."""

from __future__ import annotations

import enum

from kvstore.client.calls import Call, RequestSequence
from kvstore.client.client_limits import ClientLimits


class Admission(enum.Enum):
    """Whether a command can be sent now."""

    READY = "ready"
    WAIT = "wait"  # The command waits for a session, or until fewer numbers are open.
    LOST = "lost"  # An attempt under an expired session may have had an effect, so no retry is safe.


class SessionKeeper:
    """The session of a client. If `ttl_ns` is 0, there is no session: commands carry session 0 and no number."""

    def __init__(self, ttl_ns: int, limits: ClientLimits) -> None:
        self.ttl_ns = ttl_ns
        self.session_id = 0
        self.numbers = RequestSequence(limits.open_numbers_max)
        self.registration: Call | None = None  # In flight.
        self.keep_alive: Call | None = None  # In flight.
        self.closing: Call | None = None  # In flight.
        self.not_before = 0  # The earliest time (monotonic, in ns) of the next registration after a refusal.
        self.refused = ""  # The reason why the last registration was refused; empty if it was not refused.
        self._used_at = 0
        self._open_max = limits.open_numbers_max
        self._keep_alive_ns = min(limits.keep_alive_ns, max(1, ttl_ns // 3))

    @property
    def acknowledged_up_to(self) -> int:
        """All numbers up to this one are closed."""
        return self.numbers.acknowledged_up_to

    def admit(self, call: Call) -> Admission:
        """Decide whether `call` can be sent now. If the call can be sent and has no request number, give it a number of
        this session."""
        if not self.ttl_ns:
            return Admission.READY
        if call.request_no and call.session_id != self.session_id:
            if call.uncertain:
                return Admission.LOST
            self.release(call)  # Every attempt was refused, so the call may use the next session.
        if call.request_no:
            return Admission.READY
        if not self.session_id or not self.numbers.has_room:
            return Admission.WAIT
        call.numbers, call.session_id, call.request_no = self.numbers, self.session_id, self.numbers.open()
        return Admission.READY

    def release(self, call: Call) -> None:
        """Close the number of `call`, because no further attempt will send it."""
        if call.numbers is not None:
            call.numbers.close(call.request_no)
        call.numbers, call.session_id, call.request_no = None, 0, 0

    def wants_registration(self, now: int) -> bool:
        """True if there is no session, no registration is in flight, and a registration may be sent now."""
        return bool(self.ttl_ns) and not self.session_id and self.registration is None and now >= self.not_before

    def begin(self, session_id: int, now: int) -> None:
        """Use a newly registered session. Its request numbers begin at 1."""
        assert session_id > 0, session_id
        self.refused = ""
        self.session_id, self.numbers = session_id, RequestSequence(self._open_max)
        self._used_at = now

    def expired(self, session_id: int) -> None:
        """Note that this session has expired, as a member reported."""
        if session_id == self.session_id:
            self.session_id = 0

    def used(self, now: int) -> None:
        """Note that a request was sent under the session."""
        self._used_at = now

    def keep_alive_moment(self) -> int | None:
        """The time at which a keep-alive is due (monotonic, in ns); None if there is no session, or a keep-alive is in
        flight."""
        if not self.session_id or self.keep_alive is not None:
            return None
        return self._used_at + self._keep_alive_ns

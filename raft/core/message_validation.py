"""Validation of messages: a message is used only if it is consistent in itself and with the state of this member.

If no honest peer could send a message, the message changes nothing and its connection is closed (`ProtocolError`). So
no sender can make a member store a number that would harm it permanently, or violate an assertion about the member's
own state. A well-formed but false message (a vote given twice, an invented log) is not detected: Raft assumes that
members do not lie.
"""

from __future__ import annotations

from raft.config import PRIORITY_MAX
from raft.core.leader import Leader
from raft.core.state import CoreState
from raft.encoding.command_batch import batch_leader_time
from raft.errors import (
    ENDING_ERRORS,
    InvalidConfiguration,
    NewerConfiguration,
    ProtocolError,
    RaftError,
    ValidationFault,
)
from raft.membership.configuration import Configuration
from raft.protocol.messages import (
    AppendAccepted,
    AppendEntries,
    AppendRejected,
    InstallSnapshot,
    InstallSnapshotProgress,
    Message,
    PreVoteRequest,
    ReadIndexResponse,
)
from raft.types import LEADER_TIME_NS_MAX, Entry, EntryKind

TERM_AHEAD_MAX = 2**32
"""How far the term of a message may be above this member's term. With one campaign per second, a cluster takes 136
years for 2**32 terms. So even a member that was stopped for long, or was restored from an old copy, lags by fewer
terms. The last term is 2**63 - 1, in which no member can campaign. With this bound, 2**31 forged messages are needed to
bring a member to the last term; without the bound, one would be enough."""

LEADER_TIME_AHEAD_NS_MAX = 2**58
"""How far (ns) the leader_time of an entry may be above the leader_time of all earlier entries in the log: nine years.
The leader_time advances with the clock of the leader, and stands still while there is no leader. So only a leader that
appends no entry for nine years could cause a larger step."""

_CONFIGURATION = EntryKind.CONFIGURATION  # This alias saves an attribute lookup per entry.
_U64 = 27  # The first byte of a CBOR unsigned integer of 8 bytes.


class MessageValidation:
    """One member's checks of the messages that it receives. No check changes the member's state."""

    def __init__(self, state: CoreState) -> None:
        self._state = state
        # A leader_time (8 bytes, big-endian) up to this value is valid whatever the log contains.
        self._usual_time_max = LEADER_TIME_AHEAD_NS_MAX.to_bytes(8, "big")

    def check(self, peer_id: str, message: Message, leader: Leader | None) -> None:
        """Raise ProtocolError if no honest peer would send this message to this member.

        `leader` is this member's own `Leader` while it leads, otherwise None. The peer has completed the handshake, but
        need not be a member. Raises NewerConfiguration for a configuration of a newer build, ValidationFault if the
        check has a bug, and the errors of the log's store.
        """
        try:
            self._check(peer_id, message, leader)
        except (RaftError, *ENDING_ERRORS):
            raise
        except Exception as error:
            raise ValidationFault(type(message).__name__) from error

    def _check(self, peer_id: str, message: Message, leader: Leader | None) -> None:
        state = self._state
        if message.term != state.term:
            if message.term < state.term:
                # The core uses no other field of a message of an old term: it answers with its own term, or drops the
                # message.
                return
            self._check_term(message.term)
        in_term = message.term == state.term
        match message:
            case AppendEntries():
                if in_term:
                    self._check_leader(peer_id, leader)
                self._check_append(message)
            case AppendAccepted():
                if in_term and leader is not None:
                    self._check_answer(message.last_applied, message.read_counter, leader)
                    if message.match_index > state.log.last_index:
                        said = f"its log equals ours up to {message.match_index}"
                        raise ProtocolError(f"it says that {said}, which ends at {state.log.last_index}")
                if message.priority > PRIORITY_MAX:
                    raise ProtocolError(f"an election priority of {message.priority}; the greatest is {PRIORITY_MAX}")
            case AppendRejected():
                if in_term and leader is not None:
                    self._check_answer(message.last_applied, message.read_counter, leader)
            case InstallSnapshotProgress():
                if in_term and leader is not None:
                    self._check_answer(message.last_applied, 0, leader)
            case InstallSnapshot():
                if in_term:
                    self._check_leader(peer_id, leader)
                self._check_snapshot(message)
            case ReadIndexResponse():
                if in_term:
                    self._check_leader(peer_id, leader)
            case PreVoteRequest():
                self._check_term(message.next_term)

    def _check_term(self, term: int) -> None:
        own_term = self._state.term
        if term > own_term + TERM_AHEAD_MAX:
            raise ProtocolError(
                f"term {term}, where this member is in term {own_term}: no honest member is {TERM_AHEAD_MAX} ahead"
            )

    def _check_leader(self, peer_id: str, leader: Leader | None) -> None:
        """Check election safety (Raft Figure 3): a term has at most one leader."""
        state = self._state
        if leader is not None:
            raise ProtocolError(f"it leads in term {state.term}, as {state.node_id} does")
        if state.leader_id not in (None, peer_id):
            raise ProtocolError(f"it leads in term {state.term}, as {state.leader_id} does")

    def _check_append(self, message: AppendEntries) -> None:
        """Check the entries. They must follow `prev_index` without a gap, and their terms must never fall. They must
        agree with the entries of our log that are committed or came from the same leader.

        A configuration among the entries must have a form that this build knows, because it will be in force as soon as
        its entry is in the log.
        """
        index, term = message.prev_index, message.prev_term
        if term > message.term:
            raise ProtocolError(f"a log that has term {term} at {index}, from a leader of term {message.term}")
        agreed_index = self._agreed_index(message.term)
        is_agreed = index <= agreed_index
        if is_agreed:
            self._check_agreed(index, term)
        for entry in message.entries:
            index += 1
            if entry.index != index or not term <= entry.term <= message.term:
                raise ProtocolError(
                    f"entry {entry.index} of term {entry.term} cannot follow {index - 1} of term {term}"
                )
            term = entry.term
            if entry.kind is _CONFIGURATION:
                _check_configuration(entry)
            else:
                payload = entry.payload  # Nearly all payloads have fewer than 23 commands and a time of 8 bytes.
                if not (
                    len(payload) >= 10
                    and 0x80 < payload[0] < 0x98
                    and payload[1] == _U64
                    and payload[2:10] <= self._usual_time_max
                ):
                    self._check_leader_time(entry, message)
            if is_agreed and index <= agreed_index:
                self._check_agreed(index, term)

    def _agreed_index(self, term: int) -> int:
        """The index up to which our log certainly equals the log of the leader of `term`."""
        state = self._state
        if term == state.term and state.leader_match_index > state.commit_index:
            return state.leader_match_index
        return state.commit_index

    def _check_agreed(self, index: int, term: int) -> None:
        """Check that the leader has our entry at `index`. The caller knows one of two reasons why the leader must have
        it. Either the entry is committed (leader completeness, Raft §5.4), or the same leader has sent it before, and a
        leader never changes its own log (leader append-only, Raft §5.3).
        """
        ours = self._state.log.term_at(index)
        if ours is not None and ours != term:
            words = f"where term {ours} is committed here"
            if index > self._state.commit_index:
                words = f"where its own earlier append had term {ours}"
            raise ProtocolError(f"a log that has term {term} at {index}, {words}")

    def _check_leader_time(self, entry: Entry, message: AppendEntries) -> None:
        """Check that the leader_time can be decoded and does not jump ahead. A jump would make sessions expire and
        could never be undone."""
        state, time = self._state, batch_leader_time(entry.payload)
        if time > LEADER_TIME_NS_MAX:
            raise ProtocolError(f"entry {entry.index} has leader_time {time} ns; the greatest is {LEADER_TIME_NS_MAX}")
        before = message.prev_index
        if before > state.commit_index and state.log.term_at(before) != message.prev_term:
            return  # The append does not continue our log and will be rejected. We do not know the earlier times.
        known = state.greatest_leader_time(up_to=state.log.last_index)
        for each in message.entries[: entry.index - before - 1]:
            if each.kind is not _CONFIGURATION:
                known = max(known, batch_leader_time(each.payload))
        if time > known + LEADER_TIME_AHEAD_NS_MAX:
            raise ProtocolError(
                f"entry {entry.index} has leader_time {time} ns, {time - known} above those before it; "
                f"a leader's clock advances by at most {LEADER_TIME_AHEAD_NS_MAX} between two entries"
            )
        usual_max = min(known + LEADER_TIME_AHEAD_NS_MAX, LEADER_TIME_NS_MAX)
        self._usual_time_max = max(self._usual_time_max, usual_max.to_bytes(8, "big"))

    def _check_snapshot(self, message: InstallSnapshot) -> None:
        state, index, term = self._state, message.snapshot_index, message.snapshot_term
        if not 1 <= term <= message.term:
            raise ProtocolError(f"a snapshot at {index} of term {term}, from a leader of term {message.term}")
        if state.commit_index < index <= self._agreed_index(message.term):
            self._check_agreed(index, term)
        committed_term = state.log.term_at(state.commit_index)
        if index > state.commit_index and committed_term is not None and term < committed_term:
            raise ProtocolError(
                f"a snapshot at {index} of term {term}, where term {committed_term} is committed at "
                f"{state.commit_index}: terms never fall along a log"
            )

    def _check_answer(self, last_applied: int, read_counter: int, leader: Leader) -> None:
        """Check that the peer has not applied entries that its leader lacks, and has not answered a read round that
        this leader has not begun."""
        last_index = self._state.log.last_index
        if last_applied > last_index:
            raise ProtocolError(f"it says that it has applied {last_applied}; its leader's log ends at {last_index}")
        if read_counter > leader.reads.counter:
            asked = leader.reads.counter
            raise ProtocolError(f"it answers read round {read_counter}; its leader has begun {asked}")


def _check_configuration(entry: Entry) -> None:
    try:
        Configuration.decode(entry.payload)
    except NewerConfiguration:
        raise
    except InvalidConfiguration as error:
        raise ProtocolError(f"entry {entry.index}: {error}") from error

"""Each rule about the observations of clients can fail, and a cluster that does not recover breaks a rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import cbor2
import pytest

from harness.sim.checks.history import PROPOSED, HistoryChecker, Mark, read_commands, read_marked_commands
from harness.sim.engine.errors import Violation
from harness.sim.load.direct import Open
from harness.sim.load.service import ServiceLoad, check_requests, check_store
from harness.sim.plan.plan import SECOND_NS
from harness.sim.simulation import EVENTS_MAX
from kvstore import (
    Command,
    CommandKind,
    Consistency,
    Get,
    Put,
    Response,
    ResultCode,
    Service,
    Unavailable,
    encode_command,
)
from kvstore.protocol.commands import judged_command, judged_mark
from raft import Applied, Busy, Effects, Entry, EntryKind, ReadReady, Refused, encode_batch
from tests.simulation.support.stage import Stage

PUT = Put(b"k", b"v")
PUT_IN_LOG = (7, 1, 0, int(CommandKind.PUT), b"k", b"v")
FULL = Refused(901, Busy("uncommitted bytes", 1))
WRITTEN = (0, 2, (int(CommandKind.PUT),))


def said(kind: CommandKind, revision: int, consistency: Consistency = Consistency.LINEARIZABLE) -> Response:
    body = (int(kind),) if kind is CommandKind.PUT else (int(kind), None, 1, True)
    return Response(1, ResultCode.OK, revision, consistency, "n1", (body,))


class Client:
    """A client that records its operations, one every 10 ns."""

    def __init__(self) -> None:
        self.now = 0
        self.book = HistoryChecker(1, lambda _: None)

    def call(self, command: Command) -> dict[str, object]:
        self.now += 10
        return self.book.called("c1", 7, command, self.now)

    def ends(self, row: dict[str, object], response: Response) -> None:
        self.now += 10
        self.book.answered(row, response, self.now)

    def fails(self, row: dict[str, object]) -> None:
        self.book.failed(row, PUT, Unavailable("nobody is there"), self.now)

    # Wrong answers

    def is_carried_out_twice(self) -> None:
        self.call(PUT)
        self.book.carried_out(1, PUT_IN_LOG, WRITTEN)
        self.book.carried_out(2, (8, 1, *PUT_IN_LOG[2:]), WRITTEN)

    def gets_another_result(self) -> None:
        self.call(PUT)
        self.book.carried_out(1, PUT_IN_LOG, WRITTEN)
        self.book.carried_out(2, PUT_IN_LOG, (0, 3, WRITTEN[2]))

    def is_carried_out_after_it_failed(self) -> None:
        self.fails(self.call(PUT))
        self.book.carried_out(1, PUT_IN_LOG, WRITTEN)

    def fails_after_it_was_carried_out(self) -> None:
        row = self.call(PUT)
        self.book.carried_out(1, PUT_IN_LOG, WRITTEN)
        self.fails(row)

    def reads_what_is_out_of_date(self, consistency: Consistency = Consistency.LINEARIZABLE) -> None:
        self.ends(self.call(PUT), said(CommandKind.PUT, 2))
        self.ends(self.call(Get(b"k")), said(CommandKind.GET, 1, consistency))

    def reads_within_a_bound(self, age_ms: int) -> None:
        """A read returns a state without a write, although this write was answered 5 ms before."""
        self.ends(self.call(PUT), said(CommandKind.PUT, 2))
        self.now += 5_000_000
        stale = said(CommandKind.GET, 1, Consistency.BOUNDED)
        self.ends(self.call(Get(b"k")), stale._replace(fields=(*stale.fields, age_ms)))

    def is_carried_out_with_another_value(self) -> None:
        self.call(Put(b"another key", b"v"))
        self.book.carried_out(1, PUT_IN_LOG, WRITTEN)

    def is_carried_out_unasked(self) -> None:
        self.book.carried_out(1, PUT_IN_LOG, WRITTEN)

    def reads_that_nothing_is_there(self) -> None:
        self.ends(self.call(PUT), said(CommandKind.PUT, 2))
        self.ends(self.call(Get(b"k")), said(CommandKind.GET, 2))
        self.book.check()


def test_a_command_of_a_user_is_read_as_it_was_sent_and_its_mark_beside_it() -> None:
    marked = cbor2.loads(judged_command(cbor2.dumps(PUT_IN_LOG), judged_mark(9, "ada")))
    payload = cbor2.dumps([5, list(PUT_IN_LOG), marked])
    assert read_commands(1, payload) == (5, [list(PUT_IN_LOG)] * 2)
    assert read_marked_commands(1, payload) == (5, [(list(PUT_IN_LOG), None), (list(PUT_IN_LOG), Mark(9, "ada"))])


WRONG: dict[str, list[Callable[[Client], object]]] = {
    "nothing is carried out twice": [Client.is_carried_out_twice],
    "a session's request is carried out at most once": [Client.gets_another_result],
    PROPOSED: [
        Client.is_carried_out_with_another_value,
        Client.is_carried_out_unasked,
        lambda _: read_commands(1, b""),
        lambda _: read_commands(1, b"\x82\x00\x00"),
        lambda _: read_commands(1, cbor2.dumps([5, list(PUT_IN_LOG[:-1])])),
    ],
    "a request that failed for certain is never carried out": [
        Client.is_carried_out_after_it_failed,
        Client.fails_after_it_was_carried_out,
    ],
    "an answer is not older than any answer given before its request": [
        Client.reads_what_is_out_of_date,
        lambda client: client.reads_what_is_out_of_date(Consistency.LEASE),
    ],
    "a bounded read is no older than it says": [lambda client: client.reads_within_a_bound(age_ms=4)],
    "the history of the clients is linearizable": [Client.reads_that_nothing_is_there],
}


@pytest.mark.parametrize(("rule", "place"), [(rule, place) for rule in WRONG for place in range(len(WRONG[rule]))])
def test_a_client_that_sees_something_wrong_is_believed(rule: str, place: int) -> None:
    """docs/reference/specification.md#95-outcomes."""
    with pytest.raises(Violation) as caught:
        WRONG[rule][place](Client())

    assert caught.value.rule == rule


def test_a_local_read_may_be_out_of_date_and_so_may_one_that_was_asked_before() -> None:
    """A `local` read returns the applied state of one member. The read that was sent first may be answered last.

    See docs/reference/specification.md#811-consistency-of-reads.
    """
    Client().reads_what_is_out_of_date(Consistency.LOCAL)
    Client().reads_within_a_bound(age_ms=6)

    client = Client()
    read, write = client.call(Get(b"k")), client.call(PUT)
    client.ends(write, said(CommandKind.PUT, 2))
    client.ends(read, said(CommandKind.GET, 1))


def test_a_retry_that_finds_its_result_is_not_carried_out_again() -> None:
    """The store returns the kept result unchanged (docs/reference/specification.md#92-judging-a-request)."""
    client = Client()
    client.call(PUT)

    client.book.carried_out(1, PUT_IN_LOG, WRITTEN)
    client.book.carried_out(2, PUT_IN_LOG, WRITTEN)


# Programs that call the node


class Program(Stage):
    """A program that has made two requests to the leader, at a time when clients knew revision 999: a write of v with
    ticket 901, and a read with ticket 902."""

    def __init__(self) -> None:
        super().__init__()
        load = self.world.load
        assert not isinstance(load, ServiceLoad)
        self.load = load
        for ticket, value in ((901, b"v"), (902, b"")):
            load._open[ticket] = Open(self.leader.node_id, self.leader.life, value, 999)

    def told(self, *completions: Applied | ReadReady | Refused) -> None:
        self.load.on_flush(self.leader, Effects(completions=list(completions)))

    def is_applied(self) -> None:
        payload = encode_batch(0, (encode_command(Put(b"k", b"v")),))
        self.load.on_first_applied(Entry(900, 1, EntryKind.COMMANDS, payload), [])

    def go_through(self, steps: Sequence[Callable[[Program], object]]) -> None:
        for step in steps:
            step(self)

    def refuses(self) -> None:
        self.told(FULL)


Step = Callable[[Program], object]

WRONG_TO_PROGRAMS: dict[str, list[list[Step]]] = {
    "a ticket ends once, where it was given": [
        [lambda p: p.told(ReadReady(903))],
        [lambda p: p.load.on_flush(p.follower, Effects(completions=[FULL]))],
        [Program.refuses, Program.refuses],
    ],
    "an acknowledged command is applied": [
        [lambda p: p.told(Applied(901, 900, (0, 2)))],
        [Program.is_applied, lambda p: p.told(Applied(901, 901, (0, 2)))],
    ],
    "a refused command is never applied": [
        [Program.refuses, Program.is_applied],
        [Program.is_applied, Program.refuses],
    ],
    "nothing is applied twice": [[Program.is_applied, Program.is_applied]],
    "a read sees every write that was acknowledged before it": [[lambda p: p.told(ReadReady(902))]],
}


@pytest.mark.parametrize(
    ("rule", "place"), [(rule, place) for rule in WRONG_TO_PROGRAMS for place in range(len(WRONG_TO_PROGRAMS[rule]))]
)
def test_a_program_that_is_told_something_wrong_is_believed(rule: str, place: int) -> None:
    """Thesis §6.4, docs/reference/specification.md#96-end-of-a-proposal."""
    program = Program()

    with pytest.raises(Violation) as caught:
        program.go_through(WRONG_TO_PROGRAMS[rule][place])

    assert caught.value.rule == rule


# The end of a run


def a_load(stage: Stage) -> ServiceLoad:
    """Clients of the service that have not sent anything yet."""
    load = ServiceLoad(stage.world)
    stage.world.load = load
    return load


def leaves_a_read_open(stage: Stage) -> None:
    a_load(stage)._final_reads_open = 1
    stage.world._finish()


def leaves_a_read_unanswered(stage: Stage) -> None:
    load = a_load(stage)
    load._history.called("c1", 7, Get(b"k"), 0)
    stage.world._finish()


def leaves_a_member_behind(stage: Stage) -> None:
    stage.other.crash(power=False)
    stage.world._level()


def leaves_members_in_two_states(stage: Stage) -> None:
    assert stage.other.machine is not None
    stage.other.machine = type(stage.other.machine)()
    stage.world._level()


def never_stops(stage: Stage) -> None:
    stage.world.processes.ends_when_stopped(stage.other, 0)  # The node was not asked to stop.
    stage.world._end_stops()


def takes_no_write(stage: Stage) -> None:
    for member in (stage.follower, stage.other):
        member.crash(power=False)
    stage.world._probe()


def has_no_end(stage: Stage) -> None:
    stage.world.queue.done_count = EVENTS_MAX
    stage.world._run_until(stage.world.queue.now + 10**9, lambda: False)


def leaves_sessions_open(stage: Stage) -> None:
    assert stage.other.machine is not None
    stage.other.machine._sessions.register(SECOND_NS, 0)
    a_load(stage)._see_sessions_expire()  # No member runs a service, so none would end the session.


def leaves_what_it_refused(stage: Stage) -> None:
    assert stage.other.machine is not None
    stage.other.machine._store.revision -= 1
    check_store(stage.other.machine)


def trips_over_a_request(stage: Stage) -> None:
    assert stage.other.machine is not None
    assert stage.other.node is not None
    service = Service(stage.other.node, stage.other.machine)
    service.request_errors.record(TypeError())
    check_requests(service)


def loses_an_answer(stage: Stage) -> None:
    assert stage.other.machine is not None
    assert stage.other.node is not None
    service = Service(stage.other.node, stage.other.machine)
    service.connected(1)
    service._connections[1].in_flight += 1
    check_requests(service)


WRONG_ENDS: dict[str, list[Callable[[Stage], object]]] = {
    "a healed cluster answers reads": [leaves_a_read_open, leaves_a_read_unanswered],
    "all members reach the same entry": [leaves_a_member_behind],
    "state machine agreement": [leaves_members_in_two_states],
    "a healed cluster takes a write": [takes_no_write],
    "a member that is asked to stop stops": [never_stops],
    "sessions that are over are closed": [leaves_sessions_open],
    "a refused request leaves no trace": [leaves_what_it_refused],
    "no request meets an unexpected error": [trips_over_a_request],
    "a request in flight is open": [loses_an_answer],
    "a run comes to an end": [has_no_end],
}


@pytest.mark.parametrize(
    ("rule", "place"), [(rule, place) for rule in WRONG_ENDS for place in range(len(WRONG_ENDS[rule]))]
)
def test_a_cluster_that_does_not_get_well_is_seen(rule: str, place: int) -> None:
    """The cluster must become live within the limit, and all members must reach the same state."""
    stage = Stage()

    with pytest.raises(Violation) as caught:
        WRONG_ENDS[rule][place](stage)

    assert caught.value.rule == rule

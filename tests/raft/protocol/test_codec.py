"""Messages, hellos and batches as bytes (docs/reference/specification.md#76-peer-messages)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft import (
    ENTRY_OVERHEAD_BYTES,
    ENTRY_PAYLOAD_BYTES_MAX,
    FRAME_BYTES_MAX_PEER,
    INT64_MAX,
    AppendAccepted,
    AppendEntries,
    AppendRejected,
    Entry,
    EntryKind,
    Hello,
    HelloRole,
    InstallSnapshot,
    InstallSnapshotProgress,
    InvalidConfiguration,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    ProtocolError,
    RaftConfig,
    ReadIndexRequest,
    ReadIndexResponse,
    Refusal,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
    batch_leader_time,
    batch_size,
    decode_hello,
    decode_item,
    decode_message,
    encode_batch,
    encode_item,
    encode_message,
)
from raft.protocol.codec import APPEND_ENTRIES_MAX
from raft.protocol.hello import REFUSAL_TEXT_CHARACTERS_MAX

GOLDEN = Path(__file__).parents[1] / "golden" / "peer_frames_v1.txt"

HELLO = Hello(
    cluster_id=bytes(range(16)), group_id=0, node_id="s1", incarnation_id=bytes(range(16, 32)), role=HelloRole.PEER
)

EXAMPLES: dict[str, Message] = {
    "pre_vote_request": PreVoteRequest(term=4, next_term=5, last_index=9, last_term=4, transfer=False),
    "pre_vote_response": PreVoteResponse(term=4, next_term=5, granted=True),
    "vote_request": VoteRequest(term=5, last_index=9, last_term=4, transfer=True),
    "vote_response": VoteResponse(term=5, granted=False),
    "heartbeat": AppendEntries(
        term=5, prev_index=9, prev_term=4, entries=(), commit_index=8, low_watermark=7, read_counter=3
    ),
    "append_entries": AppendEntries(
        term=5,
        prev_index=9,
        prev_term=4,
        entries=(
            Entry(10, 4, EntryKind.COMMANDS, encode_batch(1_000, [encode_item("one"), encode_item("two")])),
            Entry(11, 5, EntryKind.NO_OP, encode_batch(2_000, [])),
            Entry(12, 5, EntryKind.CONFIGURATION, b"\x80"),
        ),
        commit_index=9,
        low_watermark=300,
        read_counter=70_000,
    ),
    "append_accepted": AppendAccepted(term=5, match_index=12, last_applied=9, read_counter=INT64_MAX),
    "append_rejected": AppendRejected(
        term=5, rejected_index=9, hint_index=6, hint_term=3, last_applied=5, read_counter=0
    ),
    "install_snapshot": InstallSnapshot(
        term=5, transfer_id=77, snapshot_index=8, snapshot_term=4, total_bytes=100, offset=40, data=b"chunk"
    ),
    "install_snapshot_progress": InstallSnapshotProgress(term=5, transfer_id=77, next_offset=45, last_applied=3),
    "install_snapshot_refused": InstallSnapshotProgress(term=5, transfer_id=77, next_offset=-1, last_applied=3),
    "timeout_now": TimeoutNow(term=5),
    "timeout_now_of_a_log": TimeoutNow(term=5, last_index=12),
    "append_accepted_with_priority": AppendAccepted(
        term=5, match_index=12, last_applied=9, read_counter=3, priority=70
    ),
    "read_index_request": ReadIndexRequest(term=5, number=41),
    "read_index_response": ReadIndexResponse(term=5, number=41, read_index=12),
}


def golden_frames() -> dict[str, bytes]:
    lines = GOLDEN.read_text().splitlines()
    return {name: bytes.fromhex(body) for name, body in (line.split(" ") for line in lines if line[0] != "#")}


def test_the_bytes_of_version_1_never_change() -> None:
    """Other programs rely on these bytes. A developer may add names to the file, but must never change the bytes of a
    name.

    See docs/reference/specification.md#73-growth.
    """
    golden = golden_frames()

    written = {name: encode_message(0, message) for name, message in EXAMPLES.items()}
    written["hello"] = HELLO.encode()
    written["refusal"] = Refusal("wrong_cluster", "it belongs to another cluster").encode()

    assert {name: body.hex() for name, body in written.items()} == {name: body.hex() for name, body in golden.items()}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_bytes_of_version_1_are_still_read(name: str) -> None:
    """An older file with such bytes must still be readable. So the test decodes these bytes, too."""
    assert decode_message(golden_frames()[name]) == (0, EXAMPLES[name])


numbers = st.integers(0, INT64_MAX)


@st.composite
def append_requests(draw: st.DrawFn) -> AppendEntries:
    terms = sorted(draw(st.lists(st.integers(1, INT64_MAX), max_size=6)))
    prev_index = draw(st.integers(0, INT64_MAX - 10))
    entries = tuple(
        Entry(prev_index + 1 + offset, term, draw(st.sampled_from(EntryKind)), draw(st.binary(max_size=300)))
        for offset, term in enumerate(terms)
    )
    prev_term = draw(st.integers(0, terms[0] if terms else INT64_MAX))
    term = draw(st.integers(terms[-1] if terms else prev_term, INT64_MAX))
    return AppendEntries(
        term=term,
        prev_index=prev_index,
        prev_term=prev_term,
        entries=entries,
        commit_index=draw(numbers),
        low_watermark=draw(numbers),
        read_counter=draw(numbers),
    )


@st.composite
def chunks(draw: st.DrawFn) -> InstallSnapshot:
    data = draw(st.binary(min_size=1, max_size=100))
    offset = draw(st.integers(0, 1 << 40))
    total_bytes = draw(st.integers(offset + len(data), 1 << 41))
    fixed = {name: draw(numbers) for name in ("term", "transfer_id", "snapshot_index", "snapshot_term")}
    return InstallSnapshot(total_bytes=total_bytes, offset=offset, data=data, **fixed)


def of(kind: type[Any], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(kind, term=numbers, **fields)


messages: st.SearchStrategy[Message] = st.one_of(
    of(PreVoteRequest, next_term=numbers, last_index=numbers, last_term=numbers, transfer=st.booleans()),
    of(PreVoteResponse, next_term=numbers, granted=st.booleans()),
    of(VoteRequest, last_index=numbers, last_term=numbers, transfer=st.booleans()),
    of(VoteResponse, granted=st.booleans()),
    append_requests(),
    of(AppendAccepted, match_index=numbers, last_applied=numbers, read_counter=numbers),
    of(
        AppendRejected,
        rejected_index=numbers,
        hint_index=numbers,
        hint_term=numbers,
        last_applied=numbers,
        read_counter=numbers,
    ),
    chunks(),
    of(TimeoutNow),
    of(ReadIndexRequest, number=numbers),
    of(ReadIndexResponse, number=numbers, read_index=numbers),
    of(InstallSnapshotProgress, transfer_id=numbers, next_offset=st.integers(-1, INT64_MAX), last_applied=numbers),
)


@given(group_id=numbers, message=messages)
def test_every_message_comes_back_as_it_was(group_id: int, message: Message) -> None:
    """A decoded message equals the one that was encoded (docs/reference/specification.md#76-peer-messages)."""
    assert decode_message(encode_message(group_id, message)) == (group_id, message)


GROWN = (AppendAccepted, TimeoutNow)
"""Messages to which a later build has added an item at the end. An earlier build writes them without this item."""


@given(
    message=of(TimeoutNow, last_index=numbers)
    | of(AppendAccepted, match_index=numbers, last_applied=numbers, read_counter=numbers, priority=st.integers(1, 100)),
    more=st.lists(st.integers(0, 9), max_size=3),
)
def test_items_that_came_later_come_back_too(message: Message, more: list[Any]) -> None:
    """Items that even later builds append come after these items, and are ignored
    (docs/reference/specification.md#73-growth)."""
    body = encode_item([*decode_item(encode_message(0, message)), *more])

    assert decode_message(body) == (0, message)


@given(
    message=messages.filter(lambda message: not isinstance(message, GROWN)),
    more=st.lists(st.integers(0, 9) | st.text(max_size=3), max_size=3),
)
def test_further_items_are_ignored(message: Message, more: list[Any]) -> None:
    """Arrays grow only at their end, so an older member can read a message of a newer member.

    See docs/reference/specification.md#73-growth.
    """
    body = encode_item([*decode_item(encode_message(0, message)), *more])

    assert decode_message(body) == (0, message)


@given(message=messages, data=st.data())
def test_a_message_with_one_item_missing_or_of_another_type_is_a_protocol_error(
    message: Message, data: st.DataObject
) -> None:
    """The codec checks the type and the range of every field. So code that uses the message need not check them
    again."""
    items = decode_item(encode_message(0, message))
    at = data.draw(st.integers(0, len(items) - 1))

    with pytest.raises(ProtocolError):
        decode_message(encode_item(items[:at]))
    with pytest.raises(ProtocolError):
        decode_message(encode_item([*items[:at], {"not": "this"}, *items[at + 1 :]]))


@given(body=st.binary(max_size=80))
def test_garbage_is_a_protocol_error(body: bytes) -> None:
    """Garbage raises only ProtocolError, which closes one connection."""
    for decode in (decode_message, decode_hello):
        try:
            decode(body)
        except ProtocolError:
            continue


@given(items=st.lists(st.integers(-2, 10) | st.binary(max_size=3) | st.booleans() | st.lists(st.integers(0, 3))))
def test_arrays_of_the_wrong_shape_are_a_protocol_error_or_a_message(items: list[Any]) -> None:
    """Such arrays resemble real messages more than random bytes do."""
    try:
        group_id, message = decode_message(encode_item(items))
    except ProtocolError:
        return
    assert decode_message(encode_message(group_id, message)) == (group_id, message)


@pytest.mark.parametrize(
    "items",
    [
        [11, 0, 1],
        [-1, 0, 1],
        [True, 0, 1],
        ["5", 0, 1],
        [4, -1, 1, True],
        [4, 0, -1, True],
        [4, 0, 1, 1],
        [9, 0, 1, 5, -2, 0],
        [8, 0, 1, 5, 5, 5, 10, 0, b""],
        [8, 0, 1, 5, 5, 5, 10, 8, b"abc"],
        [8, 0, 1, 5, 5, 5, 0, 0, b""],
        [5, 0, 3, 1, 1, 0, 0, 0, [[4, 1, b""]]],
        [5, 0, 3, 1, 2, 0, 0, 0, [[1, 1, b""]]],
        [5, 0, 3, 1, 1, 0, 0, 0, [[2, 1, b""], [1, 1, b""]]],
        [5, 0, 3, 1, 1, 0, 0, 0, [[0, 1, b""]]],
        [5, 0, 3, 1, 1, 0, 0, 0, [[2, 9, b""]]],
        [5, 0, 3, 1, 1, 0, 0, 0, [[2, 1, "text"]]],
        [5, 0, 3, 1, 1, 0, 0, 0, [[2, 1]]],
        [5, 0, 3, INT64_MAX, 1, 0, 0, 0, [[2, 1, b""]]],
        [5, 0, 3, 1, 1, 0, 0, 0, {}],
    ],
    ids=repr,
)
def test_values_that_cannot_be_are_a_protocol_error(items: list[Any]) -> None:
    """The values are unknown kinds, negative marks, terms that fall along a log, and chunks beyond their file."""
    with pytest.raises(ProtocolError):
        decode_message(encode_item(items))


def test_the_largest_entry_fits_into_a_peer_frame_and_one_byte_more_is_refused() -> None:
    """No member's frame bound may be below the entry's bound (docs/reference/specification.md#24-size-of-an-entry)."""

    def request(payload: bytes) -> AppendEntries:
        return AppendEntries(
            term=INT64_MAX,
            prev_index=INT64_MAX - 1,
            prev_term=INT64_MAX,
            entries=(Entry(INT64_MAX, INT64_MAX, EntryKind.COMMANDS, payload),),
            commit_index=INT64_MAX,
            low_watermark=INT64_MAX,
            read_counter=INT64_MAX,
        )

    largest = encode_message(INT64_MAX, request(bytes(ENTRY_PAYLOAD_BYTES_MAX)))

    assert len(largest) <= FRAME_BYTES_MAX_PEER
    assert decode_message(largest)[1] == request(bytes(ENTRY_PAYLOAD_BYTES_MAX))
    with pytest.raises(ProtocolError, match="bound"):
        decode_message(encode_message(0, request(bytes(ENTRY_PAYLOAD_BYTES_MAX + 1))))


def test_as_many_entries_as_a_leader_may_send_pass_and_one_more_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """APPEND_ENTRIES_MAX bounds the number of entries, because a frame of tiny entries could take many times its size
    in memory."""

    def request(count: int) -> bytes:
        return encode_item([5, 0, 3, 0, 0, 0, 0, 0, [[1, 1, b""]] * count])

    assert APPEND_ENTRIES_MAX * ENTRY_OVERHEAD_BYTES == ENTRY_PAYLOAD_BYTES_MAX
    # With the real bound, the test would take several seconds.
    monkeypatch.setattr("raft.protocol.codec.APPEND_ENTRIES_MAX", 100)
    assert isinstance(decode_message(request(100))[1], AppendEntries)
    with pytest.raises(ProtocolError, match="bound"):
        decode_message(request(101))


@pytest.mark.parametrize("name", ["batch_bytes_max", "append_bytes_max", "snapshot_chunk_bytes"])
def test_settings_that_no_frame_could_carry_are_refused(name: str) -> None:
    """No member's frame bound may be below an entry's bound (docs/reference/specification.md#24-size-of-an-entry)."""
    settings: dict[str, Any] = {name: ENTRY_PAYLOAD_BYTES_MAX}
    RaftConfig(**settings)
    with pytest.raises(InvalidConfiguration, match=name):
        RaftConfig(**{**settings, name: ENTRY_PAYLOAD_BYTES_MAX + 1})


def test_a_refusal_says_no_more_than_its_bound() -> None:
    """The text is cut at REFUSAL_TEXT_CHARACTERS_MAX, because the other side writes it to a log line."""
    refusal = decode_hello(Refusal("code", "x" * 5_000).encode())

    assert isinstance(refusal, Refusal)
    assert len(refusal.text) == REFUSAL_TEXT_CHARACTERS_MAX
    with pytest.raises(ProtocolError):
        decode_hello(encode_item(["HWM-REFUSED", "code", "x" * 5_000]))


def test_a_hello_and_a_refusal_come_back_as_they_were() -> None:
    """The first frame in each direction is a hello or a refusal (docs/reference/specification.md#74-hello)."""
    client = Hello(cluster_id=b"", group_id=0, node_id="", incarnation_id=b"", role=HelloRole.CLIENT)

    assert decode_hello(HELLO.encode()) == HELLO
    assert decode_hello(client.encode()) == client
    assert decode_hello(Refusal("own_id", "why").encode()) == Refusal("own_id", "why")
    at_home = replace(HELLO, peer_address="10.0.0.4:7001")
    assert decode_hello(at_home.encode()) == at_home
    assert decode_hello(encode_item([*decode_item(at_home.encode()), "more"])) == at_home


def test_a_hello_says_which_feature_levels_its_build_knows() -> None:
    """A hello without levels means that the build knows only level 1. A reader ignores items after the levels, which a
    later build has added.

    See docs/reference/specification.md#74-hello.
    """
    newer = replace(HELLO, level_min=2, level_max=3)

    assert (HELLO.level_min, HELLO.level_max) == (1, 1)
    assert decode_item(newer.encode()) == [*decode_item(HELLO.encode()), "", 2, 3]
    told = replace(newer, process_id=b"a life's")
    assert decode_item(told.encode()) == [*decode_item(newer.encode()), b"a life's"]
    assert decode_hello(encode_item([*decode_item(told.encode()), "more"])) == told


@pytest.mark.parametrize("process_id", [b"", b"seven b", b"nine byte", "a life's", 8, None])
def test_a_hello_with_an_impossible_id_of_its_process_is_a_protocol_error(process_id: object) -> None:
    with pytest.raises(ProtocolError, match="the id of a process"):
        decode_hello(encode_item([*decode_item(replace(HELLO, level_max=2).encode()), process_id]))


@pytest.mark.parametrize("levels", [[0, 1], [3, 2], ["1", 2], [1, -1], [True, 2]])
def test_a_hello_with_impossible_feature_levels_is_a_protocol_error(levels: list[object]) -> None:
    """Feature levels start at 1."""
    with pytest.raises(ProtocolError):
        decode_hello(encode_item([*decode_item(HELLO.encode()), "", *levels]))


@pytest.mark.parametrize("at", range(9))
def test_a_hello_with_one_item_of_another_type_is_a_protocol_error(at: int) -> None:
    """If the first frame is not a hello, the connection is closed."""
    items = decode_item(HELLO.encode())
    items[at] = {"not": "this"}

    with pytest.raises(ProtocolError):
        decode_hello(encode_item(items))


def test_a_peer_that_does_not_say_who_it_is_is_a_protocol_error() -> None:
    """Only a client may leave these fields empty."""
    for cluster_id, node_id, incarnation_id in ((b"", "s1", bytes(16)), (bytes(16), "", bytes(16)), (bytes(16),) * 3):
        items = decode_item(HELLO.encode())
        items[4], items[6], items[7] = cluster_id, node_id, incarnation_id
        with pytest.raises(ProtocolError):
            decode_hello(encode_item(items))


@given(leader_time=numbers, commands=st.lists(st.binary(max_size=40).map(encode_item), max_size=300))
def test_a_batch_is_one_array_of_the_leader_time_and_the_commands(leader_time: int, commands: list[bytes]) -> None:
    """The first item is `leader_time`. Each command is exactly the raw item that was passed in.

    See docs/reference/specification.md#22-batches.
    """
    payload = encode_batch(leader_time, commands)

    assert decode_item(payload) == [leader_time, *map(decode_item, commands)]
    assert payload == encode_item(decode_item(payload))
    assert batch_leader_time(payload) == leader_time
    assert batch_size(payload) == len(commands)


@pytest.mark.parametrize(
    "payload",
    [b"", b"\x80", b"\x81", b"\x01", b"\x9f\x01\xff", b"\x81\x20", b"\x81\x1b\x00", b"\x81\x1b" + b"\xff" * 8],
)
def test_what_is_no_batch_is_a_protocol_error(payload: bytes) -> None:
    """The payloads of this test are empty, have no leader time or a negative one, are cut short, or exceed 64 bits."""
    with pytest.raises(ProtocolError):
        batch_leader_time(payload)

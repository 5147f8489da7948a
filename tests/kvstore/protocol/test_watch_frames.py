"""The metrics read the summary of a frame about a watch, and do not decode every event."""

from __future__ import annotations

import pytest

from kvstore.protocol.messages import decode_response
from kvstore.protocol.watches import (
    CancelReason,
    Events,
    FrameSummary,
    MessageKind,
    decode_message,
    encode_event,
    events_frame,
    events_tail,
    message_frame,
    summarize_frame,
)
from raft import encode_item

SIZES = (1, 23, 24, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32)
"""Numbers at the ends of the range for each length of a head."""


@pytest.mark.parametrize("event_count", [1, 2, 23, 24, 255, 256, 3_000])
@pytest.mark.parametrize("number", SIZES)
def test_the_summary_of_events_is_that_of_the_decoded_message(number: int, event_count: int) -> None:
    """The summary is right for any encoded length of the numbers and of the node id before the events."""
    event = encode_event(number, b"key", (b"value", 1, number, 1, 0), None, with_previous=True)
    for node_id in ("s1", "s" * 64):
        tail = events_tail(number, encode_item(node_id), number, [event] * event_count, is_whole=event_count % 2 == 0)
        data = events_frame(number, tail)
        decoded = decode_message(decode_response(data[4:]))

        assert isinstance(decoded, Events)
        assert summarize_frame(data) == FrameSummary(MessageKind.EVENTS, len(decoded.changes))


@pytest.mark.parametrize("reason", CancelReason)
def test_the_summary_of_an_end_has_its_reason(reason: CancelReason) -> None:
    data = message_frame(7, 9, "s1", MessageKind.CANCELLED, reason.value, 3)

    assert summarize_frame(data) == FrameSummary(MessageKind.CANCELLED, reason=reason.value)


def test_other_messages_have_no_events() -> None:
    assert summarize_frame(message_frame(7, 9, "s1", MessageKind.CREATED, 10)) == FrameSummary(MessageKind.CREATED)
    assert summarize_frame(message_frame(7, 9, "s1", MessageKind.PROGRESS)) == FrameSummary(MessageKind.PROGRESS)

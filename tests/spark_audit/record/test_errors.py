"""Each mistake is an error that states what happened, the values, and what to do."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_audit.record import (
    AlreadyEnded,
    BadAnswer,
    BadSetting,
    BadText,
    ClientBusy,
    NotEnded,
    Recorder,
    RecorderClosed,
    RecordError,
    RecordingFailed,
)
from tests.spark_audit.record.helpers import checked, rows_of


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    with Recorder(tmp_path) as opened:
        yield opened


def test_an_operation_that_is_ended_twice(recorder: Recorder) -> None:
    get = recorder.get("client", "key")
    get.ok("value")

    with pytest.raises(
        AlreadyEnded, match=r"get of 'key' by client 'client'.*first ok, now failed; end an operation once"
    ):
        get.failed()


def test_a_client_with_two_open_operations(recorder: Recorder) -> None:
    recorder.put("client", "key", "value")

    words = "client 'client' called get of 'other' while the put of 'key' .* is open; give each thread or task"
    with pytest.raises(ClientBusy, match=words):
        recorder.get("client", "other")


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda r: r.get("c", "k").ok(), BadAnswer, "has no value; call ok.value. with what was read, or ok.None."),
        (lambda r: r.get("c", "k").ok(5), BadText, "value is 5, of type int; pass str or bytes"),
        (lambda r: r.get("c", "k").ok("v", revision=0), BadAnswer, "revision is 0; it is a whole number from 1"),
        (lambda r: r.get("c", "k").ok("v", version=-1), BadAnswer, "version is -1"),
        (lambda r: r.get("c", "k").ok("v", consistency="weak"), BadAnswer, "the consistency 'weak'; it is linear"),
        (lambda r: r.delete("c", "k").ok(), BadAnswer, "found=None; call ok.found=True."),
        (lambda r: r.cas("c", "k", "a", "b").ok(), BadAnswer, "succeeded=None; call ok.succeeded=True."),
        (lambda r: r.cas("c", "k", "a", "b").ok(succeeded=False), BadAnswer, "found=None; state whether the key exis"),
        (lambda r: r.get("c", 7), BadText, "key is 7, of type int; pass str or bytes"),
        (lambda r: r.get("c", b""), BadText, "key is empty"),
        (lambda r: r.get("", "k"), BadText, "client is empty"),
        (lambda r: r.put("c", "k", None), BadText, "value is None, of type NoneType"),
        (lambda r: r.put("c", "k\ud800", "v"), BadText, "half of a surrogate pair, which UTF-8 cannot encode"),
        (lambda r: r.wrap("lock", print, client="c"), BadSetting, "op is 'lock'; it must be get, put, delete, cas"),
        (lambda r: r.wrap("put", print, client="c")("k"), BadSetting, "no argument 'value'.* are key, value"),
        (lambda r: r.wrap("delete", str, client="c")("k"), BadAnswer, "returned 'k', which does not tell found"),
    ],
)
def test_values_that_a_row_cannot_have(
    recorder: Recorder, call: Callable[[Any], object], error: type[RecordError], words: str
) -> None:
    with pytest.raises(error, match=words):
        call(recorder)


def test_after_a_wrong_answer_the_operation_can_still_be_ended(recorder: Recorder, tmp_path: Path) -> None:
    get = recorder.get("client", "key")
    with pytest.raises(BadAnswer):
        get.ok("value", consistency="local", revision=0)
    get.ok("value", consistency="local", revision=1)
    recorder.flush()

    (row,) = rows_of(tmp_path)
    assert (row["status"], row["consistency"]) == ("ok", "local")


def test_a_body_without_an_outcome(recorder: Recorder, tmp_path: Path) -> None:
    with pytest.raises(NotEnded, match="has no outcome, so it counts as unknown; call ok"), recorder.put("c", "k", "v"):
        pass

    assert [(row["status"], row["error"]) for row in rows_of(tmp_path)] == [("unknown", "NotEnded")]


def test_an_exception_of_the_program_decides_the_outcome(recorder: Recorder, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), recorder.put("c", "k", "v"):
        _ = 1 / 0
    with pytest.raises(ZeroDivisionError), recorder.put("c", "k", "v", did_not_happen=(ArithmeticError,)):
        _ = 1 / 0
    with pytest.raises(ZeroDivisionError), recorder.get("c", "k"):
        _ = 1 / 0
    recorder.flush()

    assert [(row["op"], row["status"], row["error"]) for row in rows_of(tmp_path)] == [
        ("put", "unknown", "ZeroDivisionError"),
        ("put", "fail", "ZeroDivisionError"),
        ("get", "fail", "ZeroDivisionError"),
    ]


def test_use_after_close(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, values="plain")
    put = recorder.put("client", "key", "value")
    recorder.get("other", "key").ok("value")
    recorder.close()
    recorder.close()

    with pytest.raises(RecorderClosed, match="client 'client' called get after close; begin a new recorder"):
        recorder.get("client", "key")
    with pytest.raises(RecorderClosed, match=r"put of 'key' .* was ended after close; end all operations first"):
        put.ok()
    assert {row["op"]: row["status"] for row in rows_of(tmp_path)} == {"put": "unknown", "get": "ok"}
    assert checked(tmp_path).exit_code == 0


def test_a_full_disk(recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that cannot be recorded is not begun. A write whose end cannot be recorded stays unknown.

    In both cases a row of unknown outcome may be in the file, so the client continues under a new name.
    """
    put = recorder.put("client", "key", "first")
    real = os.pwrite

    def full(fd: int, data: bytes, offset: int) -> int:
        real(fd, data[:50], offset)  # A part of the line still finds room, and is overwritten later.
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def failing(fd: int, data: bytes, offset: int) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(
            RecordingFailed, match=r"record.jsonl cannot be written: No space left on device; make room"
        ):
            recorder.put("other", "key", "never sent")
        patched.setattr(os, "pwrite", failing)
        with pytest.raises(RecordingFailed, match="Input/output error"), put:
            put.ok()
    recorder.put("other", "key", "later").ok()
    recorder.put("client", "key", "last").ok()

    assert [
        (row["status"], row["client"].partition("@")[0], row["client"][-2:] == ".1") for row in rows_of(tmp_path)
    ] == [
        ("unknown", "client", False),
        ("ok", "other", True),
        ("ok", "client", True),
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"values": "open"}, 'values is \'open\'; it must be "hash" or "plain"'),
        ({"secret": b"x" * 65}, "secret is 'of another type, or longer'; it must be bytes, at most 64$"),
        ({"sample": 0}, "sample is 0; it must be more than 0 and at most 1"),
        ({"at_bound": "stop"}, "at_bound is 'stop'"),
        ({"bytes_max": 0}, "bytes_max is 0; it must be None or more than 0"),
        ({"rate_max": -1}, "rate_max is -1"),
        ({"rotate_bytes": 0}, "rotate_bytes is 0"),
        ({"flush_seconds": -1}, "flush_seconds is -1"),
        ({"error_bound_ns": -1}, "error_bound_ns is -1"),
    ],
)
def test_settings_that_are_not_allowed(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadSetting, match=words):
        Recorder(tmp_path, **options)

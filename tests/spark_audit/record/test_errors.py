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
        (lambda r: r.cas("c", "k", None, "b", expected_mod_revision=0), BadSetting, "expected_mod_revision is 0"),
        (lambda r: r.cas("c", "k", "a", "b", expected_mod_revision=1), BadSetting, "expected is 'a'; it must be None"),
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
        ({"bytes_max": 0}, "bytes_max is 0; it must be None, or a whole number, 1 or more"),
        ({"rate_max": -1}, "rate_max is -1"),
        ({"rotate_bytes": 0}, "rotate_bytes is 0"),
        ({"flush_seconds": -1}, "flush_seconds is -1"),
        ({"error_bound_ns": -1}, "error_bound_ns is -1; it must be None, or a whole number, 0 or more"),
        ({"values": 5}, "values is 5"),
        ({"secret": "text"}, "secret is 'of another type, or longer'"),
        ({"sample": "all"}, "sample is 'all'; it must be more than 0"),
        ({"sample": float("nan")}, "sample is nan"),
        ({"sample": True}, "sample is True"),
        ({"bytes_max": 1e6}, "bytes_max is 1000000.0; it must be None, or a whole number"),
        ({"bytes_max": "1 GB"}, "bytes_max is '1 GB'"),
        ({"rate_max": True}, "rate_max is True"),
        ({"rotate_bytes": None}, "rotate_bytes is None; it must be a whole number, 1 or more"),
        ({"flush_seconds": float("inf")}, "flush_seconds is inf; it must be 0 or more, and finite"),
        ({"flush_seconds": "1s"}, "flush_seconds is '1s'"),
        ({"error_bound_ns": 0.5}, "error_bound_ns is 0.5"),
        ({"run_id": ""}, "run_id is ''; it must be None, or text that is not empty"),
        ({"run_id": 7}, "run_id is 7"),
        ({"did_not_happen": OSError}, r"did_not_happen is <class 'OSError'>; it must be a tuple of exceptions"),
        ({"did_not_happen": (5,)}, r"did_not_happen is \(5,\)"),
        ({"monotonic_ns": 5}, "monotonic_ns is 5; it must be a function"),
    ],
)
def test_settings_that_are_not_allowed(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadSetting, match=words):
        Recorder(tmp_path, **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("folder", [5, "", None])
def test_a_folder_that_is_not_a_path(folder: Any) -> None:
    with pytest.raises(BadSetting, match=f"folder is {folder!r}; it must be the path of a folder"):
        Recorder(folder)

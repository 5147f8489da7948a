"""Runs a member as a process (`hwm serve`), with its signals, the ready line, and all outcomes of the process."""

from __future__ import annotations

import errno
import logging
import os
import signal
import time
import traceback
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import trio

from kvstore.cli.common import ExitCode, Failure, failure_of_system
from kvstore.cli.daemon.service_manager import notify
from kvstore.cli.output import say
from kvstore.cli.standard_streams import wait_for_no_reader_of_words
from kvstore.errors import InvalidAddress, StoreError, Unavailable
from kvstore.member.config import MemberConfig, NotAMember
from kvstore.member.joining import MemberRemoved
from kvstore.member.member import STOP_SECONDS_MAX, RunningMember, run_member
from kvstore.named_files import WriteTarget, find_target, open_in_place
from kvstore.protocol.commands import UnreadablePayload
from kvstore.resources.out_of_memory import is_out_of_memory
from kvstore.store import gc_tuning
from kvstore.store.snapshot_codec import InvalidSnapshot, UnsupportedFeatureLevel
from raft import IncarnationReplaced, InvalidConfiguration, NewerConfiguration, NodeStopped, RaftError
from storage import (
    CorruptLog,
    CorruptMeta,
    CorruptSnapshot,
    DiskFailing,
    NotCarriedOut,
    StorageError,
    is_disk_full,
    is_short_of_descriptors,
)

LOG = logging.getLogger("kvstore.server")

REPLACE = (
    "nothing acknowledged is lost while a majority of the others is sound: put a new member in its place, `hwm member "
    "replace --endpoints HOST:PORT,… OLD_ID NEW_ID=PEER/CLIENT`; a store of one is restored from a saved snapshot"
)
"""The hint for a member whose folder is damaged."""

FORGOTTEN = (
    "bring back the old folder itself, not an older copy; or put a new member in its place, under a new id, with `hwm "
    "member replace`, and leave out --bootstrap; if no member of this cluster ever had any data, empty the folders of "
    "all its members and start again"
)
"""The hint for a member whose folder was lost and made again."""

TOO_MANY_FILES = (
    "too many files are open, and nothing acknowledged is lost: raise the limit (`ulimit -n`, systemd's "
    "`LimitNOFILE=`), and start it again"
)

OUT_OF_MEMORY = (
    "nothing acknowledged is lost: give it more memory (`ulimit -v`, `MemoryMax=` of a systemd unit, the limit of its "
    "container), or remove keys (keys and values are all in memory: `hwm status --json`, stored_bytes), and "
    "start it again"
)

FILES_TOO_SMALL = (
    "nothing acknowledged is lost: a file has reached the limit on the size of files (`ulimit -f`, `LimitFSIZE=` of a "
    "systemd unit) or the limit of its file system; raise that limit, and start it again"
)
"""The hint if a file has reached a limit on the size of files. More free disk space would not help."""


def serve(config: MemberConfig, ready_file: Path | None = None) -> None:
    """Run a member until a signal stops it (`STOP_SIGNALS`).

    Raises Failure, with an exit code, for every error.

    When clients can connect, the line `ready node=… client=… peer=… [metrics=…]` is written to stderr and to
    `ready_file`. A regular `ready_file` is replaced by a file with the whole line (`named_files`).
    """
    if not __debug__:
        raise Failure(
            "the server does not run without assertions: they keep a broken invariant from spreading",
            ExitCode.USAGE,
            "start Python without -O, and without PYTHONOPTIMIZE",
        )
    ready_place = None if ready_file is None else _ready_place(ready_file)
    wait_for_no_reader_of_words()
    os.environ["RUST_BACKTRACE"] = "0"  # The member itself reports a panic of `cbor2`.
    try:
        trio.run(_serve, config, ready_file, ready_place)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise failure_of_member(_innermost(error), config.folder) from error


def _ready_place(path: Path) -> WriteTarget:
    """Return the target of the ready line. Raises Failure if the line cannot be written to the target. No file is
    created before this check."""
    try:
        place = find_target(path)
        is_folder_there = place.path.parent.is_dir()
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ELOOP):
            raise failure_of_system(error, has_begun=False) from error
        what = (error.strerror or str(error)).lower()
        raise Failure(f"{path}: {what}", ExitCode.USAGE, "name a file for the ready line") from error
    if not is_folder_there:
        raise Failure(f"{path}: there is no folder to write the ready file to", ExitCode.USAGE, "make it first")
    return place


def _ready_failure(path: Path | None, error: OSError) -> Failure:
    what = (error.strerror or str(error)).lower()
    hint = "the member is sound and has stopped: name a file for the ready line that can be written, and start it again"
    return Failure(f"{path}: the ready line could not be written: {what}", ExitCode.FAILED, hint)


async def _serve(config: MemberConfig, ready_file: Path | None, ready_place: WriteTarget | None) -> None:
    running: list[RunningMember] = []
    with _signal_receiver() as signals:
        async with trio.open_nursery() as nursery:

            async def run(*, task_status: trio.TaskStatus[RunningMember]) -> None:
                await run_member(config, task_status=task_status)
                nursery.cancel_scope.cancel()

            nursery.start_soon(_obey, signals, running, nursery.cancel_scope)
            with gc_tuning.suspended():
                member: RunningMember = await nursery.start(run)
                gc_tuning.freeze_state()
            running.append(member)
            try:
                _announce(member, ready_place)
            except OSError as error:
                raise _ready_failure(ready_file, error) from error


STOP_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGXCPU", "SIGPWR") if hasattr(signal, name)
)
"""The signals at which the member stops in an orderly way. SIGXCPU means that a limit on CPU time is reached, SIGPWR
that the power will fail."""

IGNORED_SIGNALS = (
    *(
        getattr(signal, name)
        for name in ("SIGUSR1", "SIGUSR2", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGIO", "SIGSTKFLT")
        if hasattr(signal, name)
    ),
    *(range(signal.SIGRTMIN, signal.SIGRTMAX + 1) if hasattr(signal, "SIGRTMIN") else ()),
)
"""Signals that a member ignores. Without a handler, each of these signals would end the process without a transfer of
leadership."""


def _signal_receiver() -> AbstractContextManager[AsyncIterator[int]]:
    """Return a receiver of all signals that a member handles.

    If the process has a terminal, SIGHUP means that the terminal was closed, and the member stops. If the process has
    no terminal, SIGHUP comes from a supervisor that wants the server to read its files again. A member with TLS checks
    its certificate files, and any other member ignores the signal. If SIGHUP is ignored from the start (`nohup`),
    SIGHUP stays ignored.
    """
    numbers = {*STOP_SIGNALS, *IGNORED_SIGNALS}
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.add(signal.SIGHUP)
    return trio.open_signal_receiver(*sorted(numbers))


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


async def _obey(signals: AsyncIterator[int], running: list[RunningMember], everything: trio.CancelScope) -> None:
    """Stop the member at a stop signal, and log other signals once.

    At the first stop signal, the member finishes its writes and stops. The member stops at once at a second stop
    signal, or if a stop signal arrives before the member runs. No acknowledged write is lost.
    """
    stops = {*STOP_SIGNALS, signal.SIGHUP} if _has_terminal() else {*STOP_SIGNALS}
    told: set[int] = set()
    async for number in signals:
        if number not in stops:
            if number == signal.SIGHUP and running and running[0].certificates.all:
                running[0].certificates.reread()
            elif number not in told:
                told.add(number)
                LOG.warning(
                    "%s: %s is ignored: options are read at a start",
                    running[0].node_id if running else "-",
                    _name_of(number),
                )
        elif not running or everything.deadline < float("inf"):
            everything.cancel()
        else:
            say(f"{running[0].node_id}: stopping")
            notify(STOPPING="1", STATUS="stopping")
            running[0].request_stop()
            everything.deadline = trio.current_time() + STOP_SECONDS_MAX


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # Only the first and the last real-time signal have a name.
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"


def _announce(member: RunningMember, place: WriteTarget | None) -> None:
    line = f"ready node={member.node_id} client={member.client_address} peer={member.peer_address}"
    if member.metrics_address:
        line += f" metrics={member.metrics_address}"
    say(line)
    notify(READY="1", STATUS=line)
    if place is None:
        return
    if place.is_written_in_place:
        with open(open_in_place(place.path), "w", encoding="utf-8") as file:  # noqa: PTH123 - A descriptor.
            file.write(line + "\n")
        return
    aside = place.path.with_name(f"{place.path.name}.{os.getpid()}")
    try:
        aside.write_text(line + "\n", encoding="utf-8")
        aside.replace(place.path)
    except OSError:
        with suppress(OSError):
            aside.unlink()
        raise


def failure_of_member(error: BaseException, folder: Path) -> Failure:
    """Return the Failure (one line, a hint, an exit code) for an error that ended a member or prevented its start."""
    if is_out_of_memory(error):
        return Failure("this member stopped itself: it ran out of memory", ExitCode.STOPPED, OUT_OF_MEMORY)
    if isinstance(error, NotCarriedOut) or isinstance(error.__cause__, NotCarriedOut):
        return _mistake(error, folder)  # A bug of this program, not a failure of the disk.
    match error:
        case Failure():
            return error
        case NodeStopped():
            hint = "nothing acknowledged is lost; start it again once its disk works"
            if isinstance(error.__cause__, CorruptLog | CorruptSnapshot):
                hint = REPLACE
            elif isinstance(error.__cause__, IncarnationReplaced):
                hint = FORGOTTEN
            elif isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EFBIG:
                hint = FILES_TOO_SMALL
            elif is_short_of_descriptors(error.__cause__):
                hint = TOO_MANY_FILES
            return Failure(str(error), ExitCode.STOPPED, hint)
        case UnreadablePayload() | UnsupportedFeatureLevel() | NewerConfiguration() | InvalidSnapshot():
            return Failure(str(error), ExitCode.STOPPED)
        case InvalidConfiguration() | InvalidAddress() | NotAMember():
            hint = error.hint if isinstance(error, StoreError) else "see `hwm serve --help`"
            return Failure(str(error), ExitCode.USAGE, hint)
        case MemberRemoved():
            return Failure(str(error), ExitCode.REMOVED, error.hint)
        case Unavailable():  # The cluster to join did not answer. A supervisor should restart the member.
            return Failure(str(error), ExitCode.UNAVAILABLE, error.hint)
        case StoreError():
            return Failure(str(error), ExitCode.FAILED, error.hint)
        case CorruptLog() | CorruptMeta() | CorruptSnapshot() | DiskFailing():
            return Failure(str(error), ExitCode.FAILED, REPLACE)
        case StorageError() | RaftError():
            return Failure(str(error), ExitCode.FAILED)
        case OSError():
            where = f"{error.filename or folder}: {(error.strerror or str(error)).lower()}"
            return Failure(where, ExitCode.FAILED, _remedy_of_system(error, folder))
        case _:
            return _mistake(error, folder)


def _mistake(error: BaseException, folder: Path) -> Failure:
    what = f"{type(error).__name__}: {error}".splitlines()[0]
    return Failure(
        f"this member stopped itself, because an invariant is broken: {what}",
        ExitCode.STOPPED,
        f"nothing acknowledged is lost; please report it with {_keep_traceback(error, folder)}",
    )


def _remedy_of_system(error: OSError, folder: Path) -> str:
    """Return the hint for an error of the operating system. The cause is rarely this program, so the hint names the
    likely cause."""
    if is_disk_full(error):
        return "the disk is full: make room on it, and start again; nothing acknowledged is lost"
    match error.errno:
        case errno.EFBIG:
            return FILES_TOO_SMALL
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return f"this user must own {folder} and all that is in it, on a disk that can be written"
        case errno.EISDIR | errno.ENOTDIR | errno.ENOENT | errno.ENXIO:
            return f"{folder} was changed: put back files that were moved, or replace this node by a new member"
        case errno.EIO | errno.EUCLEAN:
            return f"the disk of {folder} fails: look at the kernel's log (`dmesg`); {REPLACE}"
        case errno.EMFILE | errno.ENFILE:
            return TOO_MANY_FILES
        case _:
            return f"nothing was changed; check the disk of {folder}, and start again"


def _keep_traceback(error: BaseException, folder: Path) -> str:
    """Write the traceback to a file in `folder`, not to the terminal. Return the path of the file for the hint of the
    error.

    If the file cannot be written, return the request for a description of the error, as part of the hint.
    """
    path = folder / f"crash-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    try:
        path.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    except OSError:
        return "what led to it"
    return str(path)


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error

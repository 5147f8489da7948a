"""Shared parts of the commands of `hwm`: exit codes, the output of errors, parameter types, options of clients."""

from __future__ import annotations

import enum
import errno
import json
import math
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click
import trio
from click.core import ParameterSource

from kvstore.cli.options.tls import TLS_OPTIONS, client_tls
from kvstore.cli.options.user import USER_OPTIONS, client_user
from kvstore.cli.output import OPERATION, say, show, show_bytes, show_when_read
from kvstore.client.client import DEADLINE_SECONDS_DEFAULT, Client
from kvstore.errors import (
    ChangeRefused,
    InvalidAddress,
    LeaseLost,
    LevelRefused,
    OutcomeUnknown,
    StoreError,
    TransferRefused,
    Unavailable,
    UnderReplicated,
    Unsupported,
)
from kvstore.protocol.addresses import parse_advertised
from kvstore.protocol.text import escape_controls, escape_controls_in_json, from_text, to_text
from raft import FRAME_BYTES_MAX_CLIENT, InvalidConfiguration, Member

ENDPOINTS_DEFAULT = "127.0.0.1:7101"
SECONDS_MIN, SECONDS_MAX = 0.001, 86_400.0  # The bounds of a deadline: 1 ms and one day.
HAS_PRINTED = "kvstore.has_printed"  # Set in `Context.meta` once a JSON value was printed to stdout.
ResultT = TypeVar("ResultT")
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


class ExitCode(enum.IntEnum):
    """The exit codes, which scripts may rely on."""

    OK = 0
    NEGATIVE = 1  # The key does not exist, or the comparison is false. This is not an error.
    USAGE = 2
    FAILED = 3  # The command was certainly not carried out, or the server refused to start.
    UNKNOWN = 4  # The command may have been carried out.
    UNAVAILABLE = 5  # Certainly not carried out, because no member could be reached or there is no majority.
    STOPPED = 6  # The server stopped itself: its disk failed, or an invariant broke.
    REMOVED = 7  # The server was permanently removed from its cluster: do not start it again.
    INTERNAL = 70  # A bug of this program.
    OUTPUT = 74  # The command was carried out, but its output could not be written (`EX_IOERR`).


class Failure(click.ClickException):
    """An error, printed as one line, with a hint as a second line. With `--json`, the error is also printed as an
    object, for programs.

    `error`: the store's error that caused the failure, if any. The object contains its name, reason and lag.
    """

    def __init__(self, message: str, code: ExitCode, hint: str = "", error: StoreError | None = None) -> None:
        super().__init__(message)
        self.exit_code = int(code)  # type: ignore[misc]  # Instances differ, as in click itself.
        self.hint = hint
        self._word = code.name.lower() if error is None else error.word
        refusal = error if isinstance(error, ChangeRefused | TransferRefused | LevelRefused) else None
        self._reason = refusal.reason if refusal else None
        self._lag = refusal.lag if isinstance(refusal, ChangeRefused) else None
        context = click.get_current_context(silent=True)  # When `show` runs, there is no context.
        self._is_in_json = context is not None and context.params.get("as_json") and not context.meta.get(HAS_PRINTED)

    def show(self, file: IO[Any] | None = None) -> None:  # noqa: ARG002 - As click declares it.
        """Print the error to stderr. With `--json`, also print the error to stdout, unless a JSON value was printed
        before."""
        say(f"error: {self.format_message()}")
        if self.hint:
            say(f"hint: {self.hint}")
        if self._is_in_json:
            print_json({"error": self.as_json()})

    def as_json(self) -> dict[str, object]:
        """Return the error as an object for programs, in which `code` and `reason` are stable names."""
        return {
            "code": self._word,
            "text": self.message,
            "hint": self.hint,
            "reason": self._reason,
            "lag": self._lag,
            "is_unknown": self.exit_code == ExitCode.UNKNOWN,
        }


def failure_of(error: StoreError) -> Failure:
    """Return the Failure for an error of the store, with its exit code."""
    hint = error.hint
    match error:
        case OutcomeUnknown() | LeaseLost():  # Writes that were made before the lease was lost have taken effect.
            code = ExitCode.UNKNOWN
        case Unavailable():
            code = ExitCode.UNAVAILABLE
            if _is_by_default("endpoints"):
                named = "no --endpoints and no HWM_ENDPOINTS named a member"
                hint = f"{named}, so the default {ENDPOINTS_DEFAULT} was asked; {hint}"
        case InvalidAddress() | Unsupported():
            code = ExitCode.USAGE
        case UnderReplicated():  # The write has taken effect.
            code = ExitCode.NEGATIVE
        case _:
            code = ExitCode.FAILED
    return Failure(str(error), code, hint, error)


def _is_by_default(option: str) -> bool:
    """True if the running command has this option, and neither the command line nor the environment has set it."""
    context = click.get_current_context(silent=True)
    return context is not None and context.get_parameter_source(option) is ParameterSource.DEFAULT


if TYPE_CHECKING:
    BytesParamType = click.ParamType[bytes]
    SecondsParamType = click.ParamType[float]
    MemberParamType = click.ParamType[Member]
else:  # Before click 8.4, `ParamType` has no type parameter.
    BytesParamType = SecondsParamType = MemberParamType = click.ParamType


class Data(BytesParamType):
    """A key or value: text, or `base64:…`. With `stdin`, `-` means the bytes of standard input."""

    name = "text"

    def __init__(self, *, stdin: bool = False) -> None:
        self._stdin = stdin

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bytes:
        """Called by click."""
        if isinstance(value, bytes):
            return value
        if self._stdin and value == "-":
            return read_stdin()
        try:
            return from_text(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def read_stdin() -> bytes:
    """Return all bytes of standard input. Raises Failure if the input is too large for any request, or cannot be
    read."""
    if sys.stdin is None:
        raise Failure("standard input is closed", ExitCode.USAGE, "give the value as an argument, or a file: `< FILE`")
    try:
        data = sys.stdin.buffer.read(FRAME_BYTES_MAX_CLIENT + 1)
    except OSError as error:
        raise Failure(f"standard input cannot be read: {error.strerror or error}", ExitCode.USAGE) from error
    if len(data) > FRAME_BYTES_MAX_CLIENT:
        what = f"standard input has more than {FRAME_BYTES_MAX_CLIENT} bytes, which no request can hold"
        raise Failure(what, ExitCode.FAILED, "nothing was sent; split it over several keys")
    return data


class Seconds(SecondsParamType):
    """A number of seconds within bounds. The bounds exclude `nan` and `inf`, which `float` accepts."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Called by click."""
        try:
            seconds = float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        if not SECONDS_MIN <= seconds <= SECONDS_MAX:
            self.fail(f"{value} is not from {SECONDS_MIN} to {SECONDS_MAX:.0f} seconds", param, ctx)
        return seconds


class Number(click.FloatRange):
    """A number within bounds. `click.FloatRange` accepts `nan`, so this class refuses it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Called by click."""
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not a number", param, ctx)
        return number


class MemberType(MemberParamType):
    """`id=peerhost:port/clienthost:port`."""

    name = "member"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Member:
        """Called by click."""
        if isinstance(value, Member):
            return value
        node_id, equals, addresses = value.partition("=")
        peer, slash, client = addresses.partition("/")
        if not equals or not slash:
            self.fail(f"{value!r} must be id=peerhost:port/clienthost:port", param, ctx)
        try:
            for address in (peer, client):
                parse_advertised(address)
            return Member(node_id, peer, client)
        except (InvalidAddress, InvalidConfiguration) as error:
            self.fail(str(error), param, ctx)


def client_options(function: FunctionT) -> FunctionT:
    """Add the options that all commands for a cluster have: `--endpoints`, `--deadline`, `--json`, and those of TLS and
    of the user."""
    options = [
        click.option(
            "--endpoints",
            envvar="HWM_ENDPOINTS",
            default=ENDPOINTS_DEFAULT,
            show_default=True,
            metavar="HOST:PORT,...",
            help="Client addresses of some members; the client learns the others. [env: HWM_ENDPOINTS]",
        ),
        click.option(
            "--deadline",
            "deadline_seconds",
            type=Seconds(),
            default=DEADLINE_SECONDS_DEFAULT,
            show_default=True,
            metavar="SECONDS",
            help="Give up after this time.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs."),
        *TLS_OPTIONS,
        *USER_OPTIONS,
    ]
    for option in reversed(options):
        function = option(function)
    return function


def run_with_client(endpoints: str, deadline_seconds: float, work: Callable[[Client], Awaitable[ResultT]]) -> ResultT:
    """Run `work` with a client. An error of the store is raised as a Failure, with one line and an exit code."""

    tls, (user, password) = client_tls(), client_user()

    async def main() -> ResultT:
        addresses = [part.strip() for part in endpoints.split(",") if part.strip()]
        async with Client(
            addresses, deadline_seconds=deadline_seconds, tls=tls, user=user, password=password
        ) as client:
            return await work(client)

    return run_operation(main)


def run_operation(operation: Callable[[], Awaitable[ResultT]]) -> ResultT:
    """Run the operation of a command and return its result. Its progress is recorded in `OPERATION`.

    Raises Failure for errors of the store and of the system. Once there is a result, an error of the system is ignored.
    Such an error may come from a connection that could not be closed properly.
    """
    results: list[ResultT] = []

    async def run() -> None:
        OPERATION.has_begun = True
        results.append(await operation())
        OPERATION.is_done = True

    try:
        trio.run(run)
    except StoreError as error:
        raise failure_of(error) from error
    except OSError as error:
        if not OPERATION.is_done:
            raise failure_of_system(error, has_begun=OPERATION.has_begun) from error
    return results[0]


def failure_of_system(error: OSError, *, has_begun: bool) -> Failure:
    """Return the Failure for an error of the operating system that occurred before the command was done.

    `has_begun`: a request may have been sent, so the outcome is unknown.
    """
    what = (error.strerror or str(error)).lower()
    message = what if error.filename is None else f"{error.filename}: {what}"
    if has_begun:
        return Failure(message, ExitCode.UNKNOWN, "it may have happened; read the key before you repeat it")
    remedy = "this user must be able to enter and read the folder"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        remedy = "too few files may be open: raise the limit (`ulimit -n`)"
    elif error.filename is None:
        remedy = "try again"
    return Failure(message, ExitCode.FAILED, f"nothing was done; {remedy}")


def print_json(value: Any) -> None:
    """Print one value as JSON, on one line, with bytes as text."""
    show(_json_line(value))


async def print_json_when_read(value: Any) -> None:
    """Print one value as JSON, as `show_when_read` prints a line."""
    await show_when_read(_json_line(value))


def _json_line(value: Any) -> str:
    if (context := click.get_current_context(silent=True)) is not None:
        context.meta[HAS_PRINTED] = True
    return escape_controls_in_json(json.dumps(value, ensure_ascii=False, default=_json_default))


def _json_default(value: Any) -> Any:
    if isinstance(value, bytes):
        return to_text(value)
    raise TypeError(f"{type(value).__name__} in JSON output")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, is_titled: bool = False) -> None:
    """Print rows: on a terminal as a table with titles, and elsewhere as lines of tab-separated cells. Control
    characters are escaped. `is_titled`: elsewhere, the first line has the titles."""
    if not sys.stdout.isatty():
        titles = [[column.replace("\n", " ") for column in columns]] if is_titled else []
        for row in [*titles, *rows]:
            show_bytes("\t".join(escape_controls(str(cell)) for cell in row).encode() + b"\n")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, collapse_padding=True, padding=(0, 1), header_style="bold")
    for column in columns:
        table.add_column(Text(column), overflow="fold", min_width=max(map(len, column.splitlines())))
    for row in rows:
        table.add_row(*(Text(escape_controls(str(cell))) for cell in row))
    Console(highlight=False).print(table)

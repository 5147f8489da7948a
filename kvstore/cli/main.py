"""`hwm`: run a member, and talk to a cluster. Data goes to stdout, messages to stderr.

Exit codes: 0 done; 1 the key is not there, or a comparison is false; 2 wrong usage; 3 certainly not carried out (or the
server refused to start); 4 the outcome is unknown; 5 unavailable, certainly not carried out; 6 the server stopped
itself; 7 it was removed from its cluster; 70 a mistake in this program; 74 carried out, but the answer could not be
written to stdout; 130 interrupted.

If the answer cannot be written, exit code 0 becomes 74. Any other exit code stays, because it is more important than
the lost answer.
"""

from __future__ import annotations

import difflib
import os
import sys
from importlib import import_module

import click

from kvstore.cli.common import ExitCode, failure_of_system
from kvstore.cli.output import OPERATION, say
from kvstore.cli.standard_streams import EXIT_OUTPUT_LOST, end_with_true_exit_code
from kvstore.protocol.text import escape_controls

COMMANDS = {
    "init": ("kvstore.cli.daemon.serve", "init"),
    "serve": ("kvstore.cli.daemon.serve", "serve_command"),
    "put": ("kvstore.cli.keys.data", "put"),
    "get": ("kvstore.cli.keys.data", "get"),
    "del": ("kvstore.cli.keys.data", "delete"),
    "cas": ("kvstore.cli.keys.data", "cas"),
    "range": ("kvstore.cli.keys.data", "range_command"),
    "txn": ("kvstore.cli.keys.data", "txn"),
    "lease": ("kvstore.cli.coordination.lease", "lease"),
    "lock": ("kvstore.cli.coordination.lock", "lock"),
    "elect": ("kvstore.cli.coordination.lock", "elect"),
    "export": ("kvstore.cli.keys.json_lines", "export_command"),
    "import": ("kvstore.cli.keys.json_lines", "import_command"),
    "compact": ("kvstore.cli.keys.compact", "compact"),
    "watch": ("kvstore.cli.keys.watch", "watch"),
    "append": ("kvstore.cli.keys.data", "append"),
    "consume": ("kvstore.cli.coordination.consume", "consume"),
    "group": ("kvstore.cli.coordination.consume", "group"),
    "status": ("kvstore.cli.cluster.status", "status"),
    "top": ("kvstore.cli.cluster.top", "top"),
    "transfer": ("kvstore.cli.cluster.member", "transfer"),
    "member": ("kvstore.cli.cluster.member", "member"),
    "session": ("kvstore.cli.coordination.session", "session"),
    "limits": ("kvstore.cli.cluster.limits", "limits"),
    "user": ("kvstore.cli.access.user", "user"),
    "role": ("kvstore.cli.access.role", "role"),
    "auth": ("kvstore.cli.access.auth", "auth"),
    "upgrade": ("kvstore.cli.cluster.member", "upgrade"),
    "snapshot": ("kvstore.cli.snapshot", "snapshot"),
    "import-etcd": ("kvstore.cli.import_etcd", "import_etcd"),
    "check": ("kvstore.cli.check", "check"),
    "bench": ("kvstore.cli.bench", "bench"),
    "completion": ("kvstore.cli.completion", "completion"),
}
ALIASES = {
    "delete": "del",
    "rm": "del",
    "remove": "del",
    "set": "put",
    "list": "range",
    "ls": "range",
    "start": "serve",
    "join": "serve",
    "members": "member",
    "sessions": "session",
    "leases": "lease",
    "flock": "lock",
    "election": "elect",
    "compaction": "compact",
    "groups": "group",
    "subscribe": "consume",
    "limit": "limits",
    "users": "user",
    "roles": "role",
    "login": "auth",
    "quota": "limits",
    "promote": "member",
    "replace": "member",
    "backup": "snapshot",
    "restore": "snapshot",
    "dump": "export",
    "load": "import",
    "etcd": "import-etcd",
    "migrate": "import-etcd",
    "fsck": "check",
    "help": "--help",
}
"""The name of a command in other stores → the command of `hwm`. `hwm` refuses such a name, and the error suggests its
own command."""


class Commands(click.Group):
    """Loads the module of a command only when the command is used. For example, `hwm get` does not load the server.

    For an unknown command, the error suggests the most similar command.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of the commands, in the order in which a new user needs them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Called by click."""
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name]
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command), command
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Called by click. If an option precedes its command, the error states the correct position of the option."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            commands = [self.get_command(ctx, name) for name in COMMANDS]
            known = {option for command in commands if command for param in command.params for option in param.opts}
            if error.option_name in known:
                ctx.fail(f"{error.option_name} belongs behind the command: hwm COMMAND ... {error.option_name}")
            raise

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Called by click."""
        word = args[0]
        if word not in COMMANDS and not word.startswith("-") and not ctx.resilient_parsing:
            near = ALIASES.get(word) or next(iter(difflib.get_close_matches(word, COMMANDS, n=1, cutoff=0.5)), None)
            known = f"Did you mean `hwm {near}`?" if near else f"There are: {', '.join(COMMANDS)}."
            ctx.fail(f"No such command {word!r}. {known}")
        return super().resolve_command(ctx, args)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="highwatermark", prog_name="hwm")
def cli() -> None:
    """A replicated, durable, linearizable key-value store.

    \b
    Run one member:     hwm serve data --bootstrap --listen-client 127.0.0.1:7101
    In a second shell:  hwm put greeting hello; hwm get greeting

    Keys and values are text; `base64:...` stands for any bytes.

    \b
    Exit codes: 0 done; 1 key not found or comparison false; 2 wrong usage;
    3 certainly not carried out; 4 outcome unknown; 5 unavailable, certainly
    not carried out; 6 the server stopped itself; 7 it was permanently
    removed from its cluster.
    """


def main() -> None:
    """The console script. A failure is shown without a traceback, unless HWM_DEBUG=1 is set."""
    end_with_true_exit_code(lambda: sys.exit(_run()))


def _run() -> int:
    """Run the command and return its exit code, whether or not its output could be written."""
    OPERATION.forget()
    try:
        code = cli.main(prog_name="hwm", standalone_mode=False)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 0
    except click.ClickException as error:
        error.message = "\n".join(map(escape_controls, error.message.splitlines()))  # type: ignore[misc]
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        did = (
            "the command was carried out" if OPERATION.is_done else "a command that was sent may have been carried out"
        )
        say(f"interrupted; {did}")
        return 130
    except Exception as error:
        if os.environ.get("HWM_DEBUG"):
            raise
        return _exit_code_of(error)
    return code if isinstance(code, int) else 0


def _exit_code_of(error: Exception) -> int:
    """Report an unexpected exception of a command, and return the exit code."""
    what = f"{type(error).__name__}: {error}".splitlines()[0]
    if OPERATION.is_done:
        say(f"error: the answer could not be shown: {what}")
        say("hint: the command was carried out; please report this")
        return EXIT_OUTPUT_LOST
    if isinstance(error, OSError):
        failure = failure_of_system(error, has_begun=OPERATION.has_begun)
        failure.show()
        return failure.exit_code
    say(f"error: a mistake in this program: {what}")
    say("hint: please report it; HWM_DEBUG=1 shows the details")
    return int(ExitCode.INTERNAL)


if __name__ == "__main__":
    main()

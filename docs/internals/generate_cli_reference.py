"""Write docs/reference/cli.md from the commands themselves: `make docs-cli`.

The page depends on nothing but the commands: not on the width of a terminal, the machine or the environment.
"""

from __future__ import annotations

from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path

import click

from harness.cli import harness
from kvstore.cli.main import cli as hwm
from spark_audit.cli import cli as audit

PAGE = Path(__file__).resolve().parents[1] / "reference" / "cli.md"

PROGRAMS: tuple[tuple[str, click.Group, str], ...] = (
    ("hwm", hwm, "[The client, the embedded node, and `hwm`](client.md#hwm) explains it and has its exit codes."),
    ("hwm-harness", harness, "[The harness](harness.md) explains it, and its exit codes."),
    ("hwm-audit", audit, "[The audit](audit.md) explains it, and its exit codes."),
)

HEAD = """\
# Commands and options

Every command of `hwm`, `hwm-harness` and `hwm-audit`, with all of its options. Each command prints its part of this
page with `-h` or `--help`. `make docs-cli` generates the page, and a test compares it with the commands.
"""

VALUES = {
    "integer": "INTEGER",
    "integer range": "INTEGER",
    "float": "NUMBER",
    "float range": "NUMBER",
    "path": "PATH",
    "filename": "PATH",
}
"""The names that the page uses for the types of values. All other types keep the names that click gives them."""


def reference() -> str:
    """Return the whole page."""
    parts = [HEAD]
    for name, program, explained in PROGRAMS:
        commands = list(commands_of(name, program))
        links = ", ".join(f"[`{path.removeprefix(name).strip()}`](#{path.replace(' ', '-')})" for path, _ in commands)
        parts += [f"## {name}\n", *paragraphs(program), f"{explained}\n", f"Commands: {links}.\n"]
        for path, command in commands:
            parts += [f"### {path}\n", f"```text\n{usage(path, command)}\n```\n", *paragraphs(command)]
            if rows := [row for param in command.params if isinstance(param, click.Option) for row in [row_of(param)]]:
                parts.append("\n".join(["| option | |", "|---|---|", *rows, ""]))
    return "\n".join(parts)


def commands_of(path: str, group: click.Group) -> Iterator[tuple[str, click.Command]]:
    """Yield each command of a group and of its subgroups, with its full name, in the order of the group's help."""
    context = click.Context(group, info_name=path)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, (path, name)
        if command.hidden:
            continue
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from commands_of(f"{path} {name}", command)


def usage(path: str, command: click.Command) -> str:
    """Return the usage line of a command."""
    words = [path]
    if any(isinstance(param, click.Option) for param in command.params):
        words.append("[OPTIONS]")
    words += [argument(param) for param in command.params if isinstance(param, click.Argument)]
    if isinstance(command, click.Group):
        words.append("[COMMAND] [ARGS]..." if command.invoke_without_command else "COMMAND [ARGS]...")
    return " ".join(words)


def argument(param: click.Argument) -> str:
    """Return an argument as the usage line shows it."""
    if param.metavar is not None:
        return param.metavar
    assert param.name is not None
    word = param.name.upper() + ("..." if param.nargs != 1 else "")
    return word if param.required else f"[{word}]"


def paragraphs(command: click.Command) -> Iterator[str]:
    """Yield the paragraphs of a command's help. A paragraph that click must not wrap keeps its lines."""
    for paragraph in cleandoc((command.help or "").partition("\f")[0]).split("\n\n"):
        if paragraph.startswith("\b\n"):
            yield f"```text\n{paragraph[2:]}\n```\n"
        else:
            yield f"{escape(' '.join(paragraph.split()))}\n"


def row_of(param: click.Option) -> str:
    """Return the table row of an option: its names, what it does, and which values it takes."""
    names = ", ".join(f"`{each}`" for each in (*param.opts, *param.secondary_opts))
    if value := value_of(param):
        names += f" `{value}`"
    words = escape(" ".join((param.help or "").split()))
    facts = [*bounds_of(param.type), *(["repeatable"] if param.multiple else []), *default_of(param)]
    if param.required:
        facts.append("required")
    if facts:
        words = f"{words} ({'; '.join(facts)})".strip()
    return f"| {names.replace('|', chr(92) + '|')} | {words.replace('|', chr(92) + '|')} |"


def value_of(param: click.Option) -> str:
    """Return the placeholder for the value of an option. A flag has an empty placeholder."""
    if param.is_flag or param.count:
        return ""
    if param.metavar is not None:
        return param.metavar
    if isinstance(param.type, click.Choice):
        return "|".join(map(str, param.type.choices))
    return VALUES.get(param.type.name, param.type.name.upper())


def bounds_of(kind: object) -> Iterator[str]:
    """Yield the range of a number, as text."""
    if not isinstance(kind, click.IntRange | click.FloatRange):
        return
    least, most = kind.min, kind.max
    if least is not None and most is not None and not kind.min_open and not kind.max_open:
        yield f"{least:,} to {most:,}"
        return
    if least is not None:
        yield f"above {least:,}" if kind.min_open else f"{least:,} or more"
    if most is not None:
        yield f"below {most:,}" if kind.max_open else f"{most:,} at most"


def default_of(param: click.Option) -> Iterator[str]:
    """Yield the default of an option, unless the default is empty or the help states it.

    No default depends on the machine.
    """
    default = param.default
    if param.secondary_opts and isinstance(default, bool):
        yield f"default `{(param.opts if default else param.secondary_opts)[0]}`"
    elif "[default:" in (param.help or "") or param.is_flag or isinstance(default, bool):
        return
    elif isinstance(default, int | float | str | Path) and str(default):
        yield f"default `{default}`"


def escape(text: str) -> str:
    """Escape a text for Markdown. Text in backticks stays unchanged."""
    parts = text.split("`")
    parts[::2] = [each.replace("<", "&lt;").replace("*", "\\*") for each in parts[::2]]
    return "`".join(parts)


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")

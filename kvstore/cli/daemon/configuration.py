"""The options of `hwm serve` from four sources: the command line, environment variables, a TOML file, and defaults.

An option `--listen-peer` is `listen-peer` in the file and `HWM_LISTEN_PEER` in the environment; the argument DIR is
`dir` and `HWM_DIR`. Each source has precedence over the later ones. An empty variable counts as unset.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import tomli_w
from click.core import ParameterSource

from kvstore.cli.options.tls import kept_values
from kvstore.cli.options.user import kept_user_values
from kvstore.cli.output import show
from raft import Member

CONFIGURATION_BYTES_MAX = 1 << 20
PREFIX = "HWM_"
CONFIG, CHECK_CONFIG = "config", "check_config"


def name_of(parameter: click.Parameter) -> str:
    """Return the name of a parameter in the file: its long option without the dashes, and `dir` for the argument."""
    if isinstance(parameter, click.Argument):
        return "dir"
    return max(parameter.opts, key=len).removeprefix("--")


def variable_of(parameter: click.Parameter) -> str:
    """Return the environment variable of a parameter."""
    return PREFIX + name_of(parameter).replace("-", "_").upper()


class ConfiguredCommand(click.Command):
    """A command whose parameters can also come from the environment and from a TOML file (`--config`).

    With `--check-config`, the command checks the values as a start does before it opens its data folder, prints them
    with their sources, and ends.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(
            click.Option(
                ["--config", CONFIG],
                type=click.Path(path_type=Path, dir_okay=False, exists=True),
                is_eager=True,
                expose_value=False,
                callback=_use_file,
                metavar="FILE",
                help="Take options from this TOML file. The command line and the environment have precedence over it.",
            )
        )
        self.params.append(
            click.Option(
                ["--check-config", CHECK_CONFIG],
                is_flag=True,
                help="Check all options and certificates, print the options and their sources, and end.",
            )
        )
        for parameter in self.configurable:
            parameter.envvar = variable_of(parameter)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Called by click. If a value is invalid, the error names the source of the value, because the value need not
        come from the command line."""
        try:
            return super().parse_args(ctx, args)
        except click.BadParameter as error:
            parameter = error.param
            if parameter is not None and not isinstance(error, click.MissingParameter):
                source = _source(ctx, parameter)
                if source not in ("command line", "default"):
                    error.message += f" (from the {source})"  # type: ignore[misc]
            raise

    @property
    def configurable(self) -> list[click.Parameter]:
        """The parameters that can come from every source: all except those that apply only to a single start."""
        return [each for each in self.params if each.name != CHECK_CONFIG]


def _use_file(ctx: click.Context, _: click.Parameter, path: Path | None) -> None:
    """Make the values of the file the defaults of the command. Raises UsageError."""
    if path is None:
        return
    try:
        with path.open("rb") as file:
            content = file.read(CONFIGURATION_BYTES_MAX + 1)
    except OSError as error:
        raise click.UsageError(f"{path} cannot be read: {error.strerror or error}", ctx) from error
    if len(content) > CONFIGURATION_BYTES_MAX:
        raise click.UsageError(
            f"{path} has more than {CONFIGURATION_BYTES_MAX} bytes: it is not a configuration file", ctx
        )
    try:
        table = tomllib.loads(content.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise click.UsageError(f"{path} is not TOML: {error}", ctx) from error
    command = ctx.command
    assert isinstance(command, ConfiguredCommand)
    known = {name_of(each): each for each in command.configurable if each.name != CONFIG}
    ctx.default_map = {**(ctx.default_map or {}), **_values_of(table, known, path, ctx)}


def _values_of(
    table: Mapping[str, Any], known: Mapping[str, click.Parameter], path: Path, ctx: click.Context
) -> dict[str, Any]:
    values = {}
    for name, value in table.items():
        if isinstance(value, dict):
            raise click.UsageError(
                f"{path}: [{name}] is a table, and this file has no tables: write its options without this line", ctx
            )
        parameter = known.get(name)
        if parameter is None:
            near = difflib.get_close_matches(name.replace("_", "-"), known, n=1, cutoff=0.5)
            hint = f"Did you mean {near[0]!r}?" if near else "See `hwm serve --help`."
            raise click.UsageError(f"{path}: there is no option {name!r}. {hint}", ctx)
        if (expected := _type_error(parameter, value)) is not None:
            raise click.UsageError(f"{path}: {name} must be {expected}, not {value!r}", ctx)
        assert parameter.name is not None
        values[parameter.name] = value
    return values


def _type_error(parameter: click.Parameter, value: Any) -> str | None:
    """Return the type that the file must give this parameter; None if `value` has this type.

    click itself would accept the number 1 as the flag true, and any value as a text.
    """
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return None if isinstance(value, bool) else "true or false"
    if parameter.multiple:
        is_list = isinstance(value, list) and all(isinstance(each, str) for each in value)
        return None if is_list else "a list of texts"
    if isinstance(parameter.type, click.types.IntParamType):
        return None if isinstance(value, int) and not isinstance(value, bool) else "a whole number"
    return None if isinstance(value, str) else "a text in quotes"


def show_configuration(ctx: click.Context) -> None:
    """Print every parameter as a line of TOML, with its source as a comment. The output can be used as a file."""
    command = ctx.command
    assert isinstance(command, ConfiguredCommand)
    values = ctx.params | kept_values(ctx) | kept_user_values(ctx)
    for parameter in command.configurable:
        assert parameter.name is not None
        if parameter.name == CONFIG:
            continue
        name, value = name_of(parameter), values[parameter.name]
        if value is None or value == ():
            show(f"# {name} is not set")
            continue
        show(f"{name} = {_to_toml(parameter, value)}  # {_source(ctx, parameter)}")


def _source(ctx: click.Context, parameter: click.Parameter) -> str:
    assert parameter.name is not None
    match ctx.get_parameter_source(parameter.name):
        case ParameterSource.COMMANDLINE:
            return "command line"
        case ParameterSource.ENVIRONMENT:
            return f"environment, {parameter.envvar}"
        case ParameterSource.DEFAULT_MAP:
            return "file"
        case _:
            return "default"


def _to_toml(parameter: click.Parameter, value: Any) -> str:
    """Format a value of a parameter as the file contains it, on one line."""
    if parameter.multiple:
        return f"[{', '.join(_to_toml_item(each) for each in value)}]"
    return _to_toml_item(",".join(value) if isinstance(value, tuple) else value)


def _to_toml_item(value: Any) -> str:
    match value:
        case bytes():
            plain: Any = value.hex()
        case Member():
            plain = f"{value.node_id}={value.peer_address}/{value.client_address}"
        case (str() as node_id, str() as address):
            plain = f"{node_id}={address}"
        case bool() | int():
            plain = value
        case _:
            plain = str(value)
    return tomli_w.dumps({"x": plain}).removeprefix("x = ").strip()

"""The command `hwm-audit`: checks history files, and prints the verdict to stdout and messages to stderr.

Exit codes: 0 linearizable, 3 violation, 4 undecided, 2 unreadable or malformed input, 1 the job failed. Code 74:
the history is linearizable, but the verdict could not be written to stdout. The other codes are the same whether or not
the verdict could be written.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable
from pathlib import Path

import click
from click.core import ParameterSource
from rich.console import Console

from spark_audit.engines import ENGINES, engine_for, spare_pandas
from spark_audit.errors import BAD_INPUT, InputError, NothingToCheck, fail, report_errors
from spark_audit.follow.cli import follow_command
from spark_audit.history.frozen_copy import freeze
from spark_audit.history.paths import HistoryFile, history_files, read_run_file
from spark_audit.history.recorded_files import remarks
from spark_audit.imports.command import import_command
from spark_audit.key.decide import CONFIGURATIONS_MAX
from spark_audit.report.material import Material
from spark_audit.report.page import check_page_path, draw_page, write_page
from spark_audit.report.terminal import print_verdict
from spark_audit.spark.cluster import MASTER, REMOTE, under_spark_submit
from spark_audit.spark.package import package_command
from spark_audit.standard_streams import end_with_true_exit_code
from spark_audit.verdict.verdict import Verdict

# A history of this size has about 100,000 operations. Its audit takes seconds, so a few Spark tasks are enough.
SHORT_JOB_BYTES_MAX = 64 * 2**20


class _Commands(click.Group):
    """A command group that suggests the nearest known command if the given command does not exist."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            near = difflib.get_close_matches(name, self.list_commands(ctx), n=1, cutoff=0.5)
            hint = f" Did you mean '{near[0]}'?" if near else f" There is: {', '.join(self.list_commands(ctx))}."
            raise click.UsageError(f"No such command '{name}'.{hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="highwatermark", prog_name="hwm-audit")
def cli() -> None:
    """Check recorded histories of a key-value store for linearizability."""


def _checked_memory(ctx: click.Context, param: click.Parameter, value: str) -> str:  # noqa: ARG001
    """Reject a malformed amount of memory before it reaches Java, which would answer with a page of output."""
    if not re.fullmatch(r"[1-9][0-9]{0,8}[mgt]", value.lower()):
        raise click.BadParameter(f"{value!r} is not an amount of memory, such as 2g or 800m")
    return value


def _checked_master(ctx: click.Context, param: click.Parameter, value: str) -> str:  # noqa: ARG001
    """Reject a malformed master before it reaches Spark, which would answer with a page of output."""
    if not re.fullmatch(MASTER, value):
        raise click.BadParameter(f"{value!r} is not a Spark master, such as local[*], local[4] or spark://HOST:PORT")
    return value


def _checked_remote(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:  # noqa: ARG001
    if value is not None and not re.fullmatch(REMOTE, value):
        raise click.BadParameter(f"{value!r} is not a Spark Connect server, such as sc://HOST:PORT")
    return value


def _checked_keys(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:  # noqa: ARG001
    is_taken = value is not None and value.exists() and not value.is_file()
    if value is not None and (is_taken or value.suffix != ".parquet" or not value.parent.is_dir()):
        raise click.BadParameter(f"{value} is not the name of a .parquet file in an existing folder")
    return value


@cli.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--json", "as_json", is_flag=True, help="Print the whole verdict as JSON.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Also write the verdict as an HTML page.")
@click.option(
    "--keys",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_checked_keys,
    metavar="FILE",
    help="Write to FILE (.parquet) how each key was decided, one row per key.",
)
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default="auto",
    help="Where to check: local, in this process; spark, on Spark. auto takes spark if --master or --remote is given, "
    "under spark-submit, and if the history would need more than 1 GiB of memory; otherwise local.",
)
@click.option(
    "--configurations-max",
    type=click.IntRange(min=1),
    default=CONFIGURATIONS_MAX,
    show_default=True,
    help="The most configurations to search for a key before it counts as undecided.",
)
@click.option(
    "--master", default="local[*]", callback=_checked_master, show_default=True, help="The Spark master to run on."
)
@click.option("--remote", callback=_checked_remote, metavar="sc://HOST[:PORT]", help="Run on a Spark Connect server.")
@click.option(
    "--memory",
    default="2g",
    callback=_checked_memory,
    show_default=True,
    help="Memory of the Spark driver, such as 2g or 800m.",
)
@click.option("--verbose", is_flag=True, help="Show Spark's own output on stderr, and a traceback if the job fails.")
def check(
    paths: tuple[str, ...],
    as_json: bool,
    html: Path | None,
    keys: Path | None,
    engine: str,
    configurations_max: int,
    master: str,
    remote: str | None,
    memory: str,
    verbose: bool,
) -> None:
    """Check histories. A PATH is a run folder, a folder of run folders, a glob, or a file (.jsonl, .parquet).

    Exit status: 0 linearizable, 3 violation, 4 undecided, 2 unreadable or malformed input, 1 the job failed.
    """
    words = Console(stderr=True)
    with report_errors(verbose=verbose):
        if html is not None:
            check_page_path(html)
        materials: list[Material] = []
        show = materials.append if html is not None else None
        given = sorted(name for name in ("master", "remote") if _is_given(name))
        if engine == "local" and given:
            raise click.UsageError(f"--{given[0]} is an option of Spark; leave out --engine local")
        files = _files(paths)
        for remark in remarks(file.path for file in files):
            click.echo(f"hwm-audit: note: {remark}", err=True)
        if engine == "auto":
            engine = "spark" if given or under_spark_submit() else engine_for(files)
        if engine == "local":
            verdict = _run_here(paths, configurations_max, words, show, keys)
        else:
            short = sum(file.path.stat().st_size for file in files) <= SHORT_JOB_BYTES_MAX
            verdict = _run_in_spark(
                paths, configurations_max, master, remote, memory, short, verbose, words, show, keys
            )
        pages = [draw_page(verdict, material) for material in materials]
    if as_json:
        click.echo(verdict.to_json())
    else:
        print_verdict(verdict, Console(soft_wrap=False))
    if html is not None:
        _write(html, pages[0], verdict)
    sys.exit(verdict.exit_code)


@cli.command("freeze")
@click.argument("run", type=click.Path(path_type=Path, exists=True, file_okay=False), metavar="RUN")
@click.argument("target", type=click.Path(path_type=Path), metavar="TARGET")
@click.option("--verbose", is_flag=True, help="Show a traceback if the job fails.")
def freeze_command(run: Path, target: Path, verbose: bool) -> None:
    """Copy a run folder while recorders write to it, as it is now, for `check`.

    TARGET is a new folder. The command runs on the machine of the recorders.

    Exit status: 0 copied, 2 the folder is no run of recorders, or TARGET cannot be written, 1 the job failed.
    """
    with report_errors(verbose=verbose):
        rows = freeze(run, target)
        click.echo(f"hwm-audit: {rows} rows copied to {target}", err=True)


def _is_given(option: str) -> bool:
    return click.get_current_context().get_parameter_source(option) is not ParameterSource.DEFAULT


def _files(paths: tuple[str, ...]) -> list[HistoryFile]:
    """Return the history files at these paths.

    Raises InputError for a wrong path, a run without rows, or a malformed run.json, before any engine starts.
    """
    files = history_files(paths)
    folders = {file.folder for file in files}
    for folder in sorted(folders - {file.folder for file in files if file.path.stat().st_size}):
        raise NothingToCheck(str(folder), 0)
    for folder in folders:
        read_run_file(folder)
    return files


def _run_here(
    paths: tuple[str, ...],
    configurations_max: int,
    words: Console,
    show: Callable[[Material], None] | None,
    keys: Path | None,
) -> Verdict:
    spare_pandas()
    from spark_audit.local.job import audit

    with words.status("reading") as status:
        return audit(paths, configurations_max=configurations_max, say=status.update, show=show, keys_to=keys)


def _run_in_spark(
    paths: tuple[str, ...],
    configurations_max: int,
    master: str,
    remote: str | None,
    memory: str,
    short: bool,
    verbose: bool,
    words: Console,
    show: Callable[[Material], None] | None,
    keys: Path | None,
) -> Verdict:
    from spark_audit.spark.job import audit
    from spark_audit.spark.progress import stage_progress
    from spark_audit.spark.session import spark_session

    session = spark_session(master, remote=remote, memory=memory, short=short, verbose=verbose)
    with words.status("starting Spark") as status, session as started, stage_progress(started, status.update) as say:
        return audit(started, paths, configurations_max=configurations_max, say=say, show=show, keys_to=keys)


def _write(html: Path, page: str, verdict: Verdict) -> None:
    """Write the page. If the write fails, the command fails, but the verdict is already printed and stays valid."""
    try:
        write_page(html, page)
    except InputError as error:
        fail(f"{error}\nhint: the verdict above ({verdict.status}) stands; make room, and check again", BAD_INPUT)


cli.add_command(import_command)
cli.add_command(follow_command)
cli.add_command(package_command)


def main() -> None:
    """The entry point of the console script."""
    end_with_true_exit_code(lambda: cli(prog_name="hwm-audit"))


if __name__ == "__main__":
    main()

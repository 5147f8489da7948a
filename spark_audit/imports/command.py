"""The command `hwm-audit import`. Exit codes: 0 written, 2 malformed input or wrong usage, 1 any other failure.

A failed import leaves no incomplete file.
"""

from __future__ import annotations

from pathlib import Path

import click

from spark_audit.errors import BAD_INPUT, JOB_FAILED, InputError, fail
from spark_audit.imports import FORMATS, Imported, Settings, import_histories
from spark_audit.imports.edn import NotEdn, form_of, text_of


@click.command("import")
@click.argument("form", type=click.Choice(FORMATS), metavar="FORMAT")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The file to write: .jsonl or .parquet.")
@click.option(
    "--failed-cas",
    type=click.Choice(["no-effect", "saw-another"]),
    default="no-effect",
    show_default=True,
    help="The meaning of a failed compare-and-set: only that it changed nothing, or also that the value was not the "
    "expected one.",
)
@click.option(
    "--nil-read",
    type=click.Choice(["nil", "unknown"]),
    default="nil",
    show_default=True,
    help="The meaning of a completed read of nil: that the register held nil, or, as in Knossos, that the value is not "
    "known.",
)
@click.option(
    "--keys",
    type=click.Choice(["auto", "independent", "one"]),
    default="auto",
    show_default=True,
    help="How values are read: as [key value] of jepsen.independent, or as values of one register. auto decides by the "
    "first value.",
)
@click.option(
    "--initial",
    metavar="VALUE",
    help="The initial value of each register, as the format prints it. [default: nil; porcupine-kv: empty]",
)
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
def import_command(
    form: str,
    paths: tuple[Path, ...],
    out: Path,
    failed_cas: str,
    nil_read: str,
    keys: str,
    initial: str | None,
    force: bool,
) -> None:
    """Turn histories of Jepsen, Knossos or Porcupine into rows that `hwm-audit check` reads.

    FORMAT is jepsen-edn (maps), jepsen-log (printed lines) or porcupine-kv (get, put, append). Each PATH becomes a run.

    Exit status: 0 written, 2 malformed input or wrong usage, 1 any other failure. After a failure, nothing is written.
    """
    settings = Settings(
        independent={"auto": None, "independent": True, "one": False}[keys],
        initial=_initial(form, initial),
        nil_read_unknown=nil_read == "unknown",
        failed_cas_saw_another=failed_cas == "saw-another",
    )
    try:
        imported = import_histories(form, paths, out, settings, replace=force)
    except InputError as error:
        fail(str(error), BAD_INPUT)
    except KeyboardInterrupt:
        fail("interrupted; nothing was written", JOB_FAILED)
    except OSError as error:
        fail(f"{error.filename or out}: {error.strerror or error}; nothing was written", JOB_FAILED)
    click.echo(_summary(imported, out), err=True)


def _initial(form: str, text: str | None) -> str | None:
    """Return the initial value as it is stored in a row.

    For a Jepsen format, the text is read as EDN, so that 0 and 0N are equal. For Porcupine, it is stored unchanged.
    """
    if text is None or form == "porcupine-kv":
        return text
    try:
        return text_of(form_of(text))
    except NotEdn as error:
        raise click.BadParameter(f"expected {error.expected}, found {error.found}", param_hint="--initial") from error


def _summary(imported: Imported, out: Path) -> str:
    lines = [
        f"{out}: {imported.operations:,} operations ({imported.failed:,} failed, {imported.unknown:,} of unknown "
        f"outcome) on {_counted(imported.registers, 'key')}, {_counted(imported.runs, 'run')}"
    ]
    if imported.silent_cas:
        lines.append(f"{imported.silent_cas:,} failed compare-and-sets name an error, and so do not show the value")
    if imported.left_out:
        lines.append("left out: " + ", ".join(f"{count:,} {what}" for what, count in sorted(imported.left_out.items())))
    return "\n".join([*lines, f"hint: hwm-audit check {out}"])


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' if count != 1 else ''}"

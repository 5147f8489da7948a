"""The audit as one archive, for Python processes on other machines: executors, or a driver started by spark-submit.

It contains this package and the pure Python packages that it imports. It does not contain numpy, pyarrow and pandas,
because these are compiled for a machine and a version of Python. Executors must have numpy and pyarrow installed; a
driver also needs pandas.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import click

from spark_audit.errors import UnreadablePath

FOR_EXECUTORS = ("spark_audit", "sortedcontainers")
FOR_DRIVERS = ("click", "rich")  # A driver also needs the packages of the command line.
# The earliest date in a zip file. With a constant date, the same files give the same archive, byte by byte.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_MAIN = """\"\"\"What spark-submit runs: hwm-audit, out of the archive beside it (--py-files).\"\"\"

from spark_audit.cli import main

main()
"""


def write_archive(path: Path, packages: tuple[str, ...] = FOR_EXECUTORS) -> None:
    """Write a zip of these packages, importable as it is. Raises OSError."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in packages:
            for name, file in _files_of(package):
                archive.writestr(zipfile.ZipInfo(name, _EPOCH), file.read_bytes(), zipfile.ZIP_DEFLATED)


def _files_of(package: str) -> Iterator[tuple[str, Path]]:
    spec = find_spec(package)
    assert spec is not None, package
    assert spec.submodule_search_locations, package
    root = Path(next(iter(spec.submodule_search_locations)))
    for file in sorted(root.rglob("*")):
        if file.is_file() and file.suffix not in (".pyc", ".so", ".pyd"):
            yield f"{package}/{file.relative_to(root).as_posix()}", file


@click.command("package")
@click.argument("archive", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.zip")
def package_command(archive: Path) -> None:
    """Write what spark-submit needs: FILE.zip, for --py-files, and FILE.py, which it runs."""
    if archive.suffix != ".zip":
        raise click.UsageError(f"{archive} does not end in .zip, and Spark imports from no other")
    main = archive.with_suffix(".py")
    try:
        write_archive(archive, FOR_EXECUTORS + FOR_DRIVERS)
        main.write_text(_MAIN, encoding="utf-8")
    except OSError as error:
        failed = UnreadablePath(str(archive), f"cannot be written ({error.strerror or error})")
        click.echo(f"hwm-audit: {failed}", err=True)
        raise SystemExit(2) from error
    click.echo(f"spark-submit --master MASTER --py-files {archive} {main} check PATH...", err=True)

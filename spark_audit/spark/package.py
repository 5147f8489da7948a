"""Writes the audit as one archive, for Python processes elsewhere: executors, or a driver that spark-submit starts.

The archive has this package and the pure Python packages that it imports. The archive does not have numpy, pyarrow and
pandas, because they are compiled for one machine type and one Python version. So numpy and pyarrow must be installed on
executors; a driver needs pandas, too.
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
# All files in the archive have this date, so that the same files always give the same archive.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_MAIN = """\"\"\"What spark-submit runs: hwm-audit, out of the archive beside it (--py-files).\"\"\"

from spark_audit.cli import main

main()
"""


def write_archive(path: Path, packages: tuple[str, ...] = FOR_EXECUTORS) -> None:
    """Write a zip file from which Python can import these packages. Raises OSError."""
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
    """Write the two files that spark-submit needs: FILE.zip for its option --py-files, and FILE.py to run."""
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

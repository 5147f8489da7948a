"""How every command says what went wrong: a line or two on stderr, and an exit status."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import click

from spark_audit.errors import AuditError, InputError, MalformedHistory

JOB_FAILED, BAD_INPUT = 1, 2


def fail(message: str, status: int) -> NoReturn:
    """Say it, and exit."""
    click.echo(f"hwm-audit: {message}", err=True)
    sys.exit(status)


@contextmanager
def told_in_words(*, verbose: bool) -> Iterator[None]:
    """Whatever is raised inside, but wrong usage, ends the command in words. `verbose`: the unexpected is raised."""
    try:
        yield
    except MalformedHistory as error:
        form = "docs/reference/specification.md#103-row"
        fail(f"{error}\nhint: {form} has the form of a row; take out or mend these, and check again", BAD_INPUT)
    except InputError as error:
        fail(str(error), BAD_INPUT)
    except AuditError as error:
        fail(str(error), JOB_FAILED)
    except click.ClickException:
        raise
    except ImportError as error:
        fail(f"{error.name} is not installed\nhint: pip install 'highwatermark[audit]'", JOB_FAILED)
    except KeyboardInterrupt:
        fail("interrupted", JOB_FAILED)
    except Exception as error:  # Whatever Spark, Java or a worker raised: one line, not a page.
        if verbose:
            raise
        fail(f"the audit job failed: {_first_line(error)}\nhint: run again with --verbose", JOB_FAILED)


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__

"""`hwm-harness scenario high-water-mark`: plays the accounts of the high-water mark, and draws them."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from textwrap import wrap
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.reports.page import check_page_path, write_page
from harness.scenarios.high_water_mark.accounts import ALL, Account, load_accounts, play_account
from harness.scenarios.high_water_mark.page import draw_page
from harness.scenarios.high_water_mark.terminal import LEGEND, draw
from harness.scenarios.language import LEVELS

EXIT_MISMATCH = 3
_PIPE_WIDTH = 132
_TEXT_WIDTH = 110


@click.command("high-water-mark")
@click.argument("names", nargs=-1, metavar="[NAME|all]...")
@click.option(
    "--level",
    type=click.Choice([*LEVELS, ALL]),
    help="Draw the pictures of this acknowledgement level.  [default: the first level of the account]",
)
@click.option("--quiet", is_flag=True, help="Draw no picture on the terminal.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Draw all levels on one HTML page.")
@click.option("--json", "as_json", is_flag=True, help="Print everything that the pictures show, as JSON on stdout.")
def high_water_mark(names: tuple[str, ...], level: str | None, quiet: bool, html: Path | None, as_json: bool) -> None:
    """Play accounts of the high-water mark on whole nodes, and draw the logs and marks step by step.

    Without a NAME the accounts are listed; `all` plays all of them. Each account is played at each of its levels of
    acknowledgement. Exit code 3: an account did not end as expected, or the engine failed.
    """
    if not names:
        if html is not None or level is not None:
            raise click.UsageError("name an account, or `all`")
        _list(as_json=as_json)
        return
    if html is not None:
        check_page_path(html)
    accounts = [play_account(scenario) for scenario in load_accounts(names)]
    if as_json:
        click.echo(json.dumps([_to_json(account) for account in accounts], indent=2, ensure_ascii=False))
    else:
        _show(accounts, level, quiet=quiet)
    if html is not None:
        write_page(html, draw_page(accounts))
        click.echo(f"drawn: {html}", err=True)
    sys.exit(0 if all(account.held for account in accounts) else EXIT_MISMATCH)


def _list(*, as_json: bool) -> None:
    scenarios = load_accounts([ALL])
    if as_json:
        listed = [{"name": each.name, "title": each.title, "levels": each.levels} for each in scenarios]
        click.echo(json.dumps(listed, indent=2))
        return
    table = Table("account", "what it shows", "levels", box=None)
    for each in scenarios:
        table.add_row(each.name, each.title, ", ".join(each.levels))
    _out().print(table, highlight=False)


def _show(accounts: list[Account], level: str | None, *, quiet: bool) -> None:
    out = _out()
    width = out.width if sys.stdout.isatty() else None
    for account in accounts:
        if not quiet:
            for line in account_lines(account, level, width):
                out.print(line, soft_wrap=True, highlight=False)
        for each in account.levels:
            parts = list(account.at(each))
            held = sum(part.expectations for part in parts)
            verdict = "ends as told" if all(part.problem is None for part in parts) else "FAILED"
            click.echo(f"{account.name}, level {each}: {verdict}, {held} expectations held")
            for part in parts:
                if part.problem is not None:
                    click.echo(part.problem)


def account_lines(account: Account, level: str | None, width: int | None) -> list[Text]:
    """Return the pictures of an account with their sentences.

    `width`: the width of the terminal in columns; None: no limit.
    """
    shown = account.levels if level == ALL else [each for each in account.levels if level in (None, each)][:1]
    about = wrap(account.about, min(width or _TEXT_WIDTH, _TEXT_WIDTH))
    lines = [Text(account.title, "bold"), *map(Text, about), Text()]
    lines += [Text(LEGEND, "dim"), Text()] if shown else [Text(f"it has no level {level}"), Text()]
    for each in shown:
        number = 0
        lines += [Text(f"── level {each} ──", "bold"), Text()]
        for part in account.at(each):
            for heading, pictures in (("", part.beginning), (part.ending, part.pictures)):
                if heading:
                    lines += [Text(f"── {heading} ──", "bold"), Text()]
                for number, picture in enumerate(pictures, number + 1):  # noqa: B020 - it counts on.
                    lines += [Text(f"{number}. {picture.sentence}", "bold"), *draw(picture, width), Text()]
    return lines


def _to_json(account: Account) -> dict[str, Any]:
    return {**asdict(account), "held": account.held}


def _out() -> Console:
    return Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, markup=False)

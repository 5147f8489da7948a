"""Draws accounts as one page of HTML. The page loads no other files, and shows every picture even without scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from string import Template

from harness.scenarios.answers import ANSWERS
from harness.scenarios.high_water_mark.accounts import Account, Part
from harness.scenarios.high_water_mark.picture import LogPicture, Row, ranges
from harness.sim.diagram.draw import ROLES

TERM_COLOURS = ("#cfe8f7", "#d3f0d0", "#f3d9f2", "#fbe9b7", "#dcdcf8")
"""The colours of terms, in turn."""


def draw_page(accounts: Sequence[Account]) -> str:
    """Return the page of these accounts, with all levels and endings."""
    template = Template(files("harness.scenarios.high_water_mark").joinpath("page.html").read_text(encoding="utf-8"))
    return template.substitute(
        contents=" · ".join(f'<a href="#{each.name}">{each.name}</a>' for each in accounts),
        answers="\n".join(
            f"<tr><th>{escape(name)}</th><td>{escape(words)}</td></tr>" for name, words in ANSWERS.items()
        ),
        accounts="\n".join(line for account in accounts for line in _account(account)),
    )


def _account(account: Account) -> Iterator[str]:
    verdict = "ends as told" if account.held else "did not end as told"
    yield f'<section id="{account.name}"><h2>{escape(account.title)} <small>{verdict}</small></h2>'
    yield f"<p>{escape(account.about)}</p>"
    for place, level in enumerate(account.levels):
        parts = list(account.at(level))
        held = sum(part.expectations for part in parts)
        yield f"<details{' open' if place == 0 else ''}><summary>level <b>{level}</b>"
        yield f"<small>{held} expectations held</small></summary>"
        yield '<div class="watch"><div class="tools" hidden></div>'
        number = 0
        for part in parts:
            for ending, pictures in (("", part.beginning), (part.ending, part.pictures)):
                for picture in pictures:
                    number += 1
                    yield from _picture(picture, number, ending)
            yield from _problem(part)
        yield "</div></details>"
    yield "</section>"


def _problem(part: Part) -> Iterator[str]:
    if part.problem is not None:
        yield f'<pre class="problem">{escape(part.problem)}</pre>'


def _picture(picture: LogPicture, number: int, ending: str) -> Iterator[str]:
    yield f"<figure><figcaption>{f'<i>{escape(ending)}</i>' if ending else ''}"
    yield f"<b>{number}.</b> {escape(picture.sentence)}</figcaption>"
    yield '<table class="logs"><tr><td></td><td></td><td>term</td><td class="start"></td>'
    yield "".join(f'<td class="index">{index}</td>' for index in range(1, picture.last_index + 1))
    yield '<td class="disk">disk</td><td>mark</td><td>in sync</td><td>a client sees</td></tr>'
    for row in picture.rows:
        yield from _row(row, picture.last_index)
    yield "</table>"
    yield from _answers(picture)
    yield from _marks(picture)
    yield "</figure>"


def _row(row: Row, last_index: int) -> Iterator[str]:
    colour = ROLES.get(row.state, ROLES[""])
    yield f'<tr class="{row.state}"><th>{row.node_id}</th><td style="color:{colour}">{row.state}</td>'
    yield f"<td>{row.term}</td>"
    yield f'<td class="start{" mark" if row.mark == 0 else ""}"></td>'
    for cell in row.cells:
        classes = ["entry", *(["mark"] if row.mark == cell.index else []), *([] if cell.is_durable else ["memory"])]
        colour = TERM_COLOURS[(cell.term - 1) % len(TERM_COLOURS)]
        where = "on disk" if cell.is_durable else "in memory only"
        title = f"entry {cell.index} of term {cell.term}, {where}"
        words = f"{escape(cell.words)}<sub>{cell.term}</sub>"
        yield f'<td class="{" ".join(classes)}" style="background:{colour}" title="{title}">{words}</td>'
    yield "<td></td>" * (last_index - len(row.cells))
    in_sync = {True: "yes", False: "no", None: "–"}[row.in_sync]
    sees = "–" if row.sees is None else escape(ranges(row.sees)) or "nothing"
    mark = "–" if row.mark is None else row.mark
    yield f'<td class="disk">{row.durable_index}</td><td>{mark}</td><td>{in_sync}</td><td>{sees}</td></tr>'


def _answers(picture: LogPicture) -> Iterator[str]:
    if picture.answers:
        told = "; ".join(f"<b>{escape(ranges(words))}</b>: {escape(each)}" for each, words in picture.answers)
        yield f"<p>answers: {told}</p>"


def _marks(picture: LogPicture) -> Iterator[str]:
    marks = picture.marks
    if marks is None:
        yield "<p>no leader, so no mark moves</p>"
        return
    if marks.kafka is None:
        kafka = ("–", f"not known: {' '.join(marks.unconfirmed_ids)} has confirmed nothing yet")
    else:
        waits = "" if marks.wanted_in_sync is None else f" (Kafka 4.0 waits until {marks.wanted_in_sync} are in sync)"
        kafka = (str(marks.kafka), f"{marks.kafka + 1}{waits}")
    yield (
        f'<table class="marks"><tr><th></th><td>inclusive</td><td>as Kafka counts</td></tr>'
        f"<tr><th>our mark: a majority has it</th><td><b>{marks.ours}</b></td><td>{marks.ours + 1}</td></tr>"
        f"<tr><th>Kafka's mark: all in sync have it ({' '.join(marks.in_sync_ids)})</th>"
        f"<td><b>{kafka[0]}</b></td><td>{kafka[1]}</td></tr></table>"
    )

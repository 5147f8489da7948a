"""Draws a picture as lines of text. Colours only repeat information that the characters show."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from harness.scenarios.high_water_mark.picture import NO_COMMAND, LogPicture, Row, leads, ranges

TERM_STYLES = ("cyan", "green", "magenta", "yellow", "blue")
"""The colours of terms, in turn."""

BORDER, MARK, UNSYNCED = "│", "┃", "~"

LEGEND = (
    f"{BORDER}1A{BORDER} an entry of term 1 with the command A   {BORDER}1{NO_COMMAND}{BORDER} a leader's first entry"
    f"   {UNSYNCED} not on the disk yet   {MARK} the high-water mark"
)

FACTS = ("disk", "mark", "in sync", "a client sees")
_GAP = "  "


def draw(picture: LogPicture, width: int | None = None) -> list[Text]:
    """Return the lines of a picture.

    If the lines would be wider than `width` columns, the facts are drawn below the logs.
    """
    cell = max([len(f"{each.term}{each.words}") for row in picture.rows for each in row.cells] + [2]) + 1
    names = max(len(row.node_id) for row in picture.rows)
    states = max(len(row.state) for row in picture.rows)
    logs = [Text(" " * (names + states + 3) + "term" + _GAP + _indexes(picture.last_index, cell), "dim")]
    for row in picture.rows:
        line = Text()
        line.append(f"{row.node_id:<{names}}  ", "bold")
        line.append(f"{row.state:<{states}} ", "bold green" if leads(row) else "dim")
        line.append(f"{row.term:>4}" + _GAP, "default")
        line.append_text(_log(row, picture.last_index, cell))
        logs.append(line)
    facts = _facts(picture)
    joined = [Text.assemble(log, _GAP, fact) for log, fact in zip(logs, facts, strict=True)]
    if width is not None and max(line.cell_len for line in joined) > width:
        labels = [Text(f"{name:<{names}}" + _GAP, "dim") for name in ("", *[row.node_id for row in picture.rows])]
        joined = logs + [Text.assemble(label, fact) for label, fact in zip(labels, facts, strict=True)]
    lines = [*joined, *_answers(picture), *_marks(picture)]
    for line in lines:
        line.rstrip()
    return lines


def _indexes(last_index: int, cell: int) -> str:
    return "".join(f" {index:<{cell}}" for index in range(1, last_index + 1)) + " "


def _log(row: Row, last_index: int, cell: int) -> Text:
    line = Text()
    line.append(MARK if row.mark == 0 else BORDER, _border_style(0, row))
    for entry in row.cells:
        style = TERM_STYLES[(entry.term - 1) % len(TERM_STYLES)]
        words = f"{entry.term}{entry.words}{'' if entry.is_durable else UNSYNCED}"
        line.append(f"{words:<{cell}}", f"{style} italic" if not entry.is_durable else style)
        line.append(MARK if row.mark == entry.index else BORDER, _border_style(entry.index, row))
    line.append(" " * (cell + 1) * (last_index - len(row.cells)))
    return line


def _border_style(index: int, row: Row) -> str:
    return "bold red" if row.mark == index else "dim"


def _facts(picture: LogPicture) -> list[Text]:
    """Return a line with the column headings, and then one line per member."""
    table = [FACTS, *[_fact(row) for row in picture.rows]]
    widths = [max(len(line[place]) for line in table) for place in range(len(FACTS))]
    lines = []
    for number, line in enumerate(table):
        numbers = _GAP.join(f"{word:>{width}}" for word, width in zip(line[:2], widths[:2], strict=True))
        words = _GAP.join(f"{word:<{width}}" for word, width in zip(line[2:], widths[2:], strict=True))
        lines.append(Text(numbers + _GAP + words, "dim" if number == 0 else ""))
    return lines


def _fact(row: Row) -> tuple[str, ...]:
    in_sync = {True: "yes", False: "no", None: "-"}[row.in_sync]
    sees = "-" if row.sees is None else ranges(row.sees) or "nothing"
    return str(row.durable_index), "-" if row.mark is None else str(row.mark), in_sync, sees


def _answers(picture: LogPicture) -> Iterator[Text]:
    if picture.answers:
        told = "; ".join(f"{ranges(words)}: {each}" for each, words in picture.answers)
        yield Text.assemble(("answers  ", "dim"), told)


def _marks(picture: LogPicture) -> Iterator[Text]:
    marks = picture.marks
    if marks is None:
        yield Text.assemble(("marks    ", "dim"), "no leader, so no mark moves")
        return
    ours = Text.assemble(("marks    ", "dim"), (f"ours {marks.ours}", "bold red"), " (a majority has it); Kafka's ")
    if marks.kafka is None:
        unconfirmed = " ".join(marks.unconfirmed_ids)
        yield ours.append(f"is not known: {unconfirmed} counts as in sync and has confirmed nothing yet")
    else:
        ours.append(f"{marks.kafka} (all in sync have it: {' '.join(marks.in_sync_ids)}); ")
        ours.append(f"as Kafka counts: {marks.ours + 1} and {marks.kafka + 1}")
        if marks.wanted_in_sync is not None:
            ours.append(f"; Kafka 4.0 waits until {marks.wanted_in_sync} are in sync")
        yield ours

"""Draws a verdict as one HTML page.

The page loads nothing from the network, and is complete without scripts. The same input always gives the same page.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from spark_audit.errors import UnreadablePath
from spark_audit.history.paths import replaceable_file
from spark_audit.report.axis import plain
from spark_audit.report.material import PLOTS_MAX, Bar, Material, Plot
from spark_audit.report.plot import draw_plot
from spark_audit.report.scene import draw_scene, shares_no_axis
from spark_audit.verdict.verdict import LINEARIZABLE, PROPERTIES, SHOWN_MAX, UNDECIDED, VIOLATION, Verdict, Violation
from spark_audit.verdict.words import levels_words, services_words, span

SUFFIXES = (".html", ".htm")

_TITLES = {LINEARIZABLE: "linearizable", VIOLATION: "violation", UNDECIDED: "undecided"}
_OUTCOMES = {LINEARIZABLE: "holds", VIOLATION: "violated", UNDECIDED: "undecided"}
_SENTENCES = {
    LINEARIZABLE: "Every property holds: one order of all operations explains the answers that the clients saw.",
    VIOLATION: "The answers that the clients saw cannot be explained.",
    UNDECIDED: "Nothing was found to be wrong, but not everything is proven.",
}
_CLOCK_ERROR = "The order of two stamps of different clocks is not known if they are less than {} apart."
_SEVERAL_AXES = "These stamps are of several clocks that cannot be compared: each begins at the left."
_TOOLS = (
    '<div class="tools" hidden><button data-do="in" title="zoom in">+</button>'
    '<button data-do="out" title="zoom out">−</button><button data-do="left" title="earlier">←</button>'
    '<button data-do="right" title="later">→</button><button data-do="all">all</button></div>'
)


def check_page_path(path: Path) -> None:
    """Check, before the audit begins, that a page can be written to this path. Raises UnreadablePath."""
    if path.suffix.lower() not in SUFFIXES:
        raise UnreadablePath(str(path), "write the page to a name that ends in .html")
    if path.is_dir():
        raise UnreadablePath(str(path), "is a folder; name a file in it")
    replaceable_file(path)
    if not path.parent.is_dir():
        raise UnreadablePath(str(path), f"cannot be written: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UnreadablePath(str(path), f"cannot be written: no permission to write in {path.parent}")


def write_page(path: Path, page: str) -> None:
    """Write the page under another name, and rename it, so that `path` never has half a page. Raises UnreadablePath."""
    check_page_path(path)
    path = replaceable_file(path)
    part = path.with_name(f".{path.name}.part-{os.getpid()}")
    try:
        part.write_text(page, encoding="utf-8", newline="\n")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UnreadablePath(str(path), f"the page cannot be written: {error.strerror or error}") from error
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def draw_page(verdict: Verdict, material: Material) -> str:
    """Return the page of a verdict. `material`: the other content of the page."""
    template = Template(files("spark_audit.report").joinpath("violation_page.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=f"hwm-audit: {_TITLES[verdict.status]}",
        status=verdict.status,
        sentence=_SENTENCES[verdict.status],
        summary=_summary(verdict),
        properties="\n".join(_properties(verdict)),
        violations="\n".join(_violations(verdict, material)),
        undecided="\n".join(_undecided(verdict)),
        plots="\n".join(_plots(verdict, material)),
    )


def _text(words: str) -> str:
    return escape(plain(words))


def _summary(verdict: Verdict) -> str:
    keys = ", ".join(f"{count:,} by {method}" for method, count in sorted(verdict.methods.items()))
    judged = [words for words in (services_words(verdict), levels_words(verdict)) if words is not None]
    return _text(
        f"{verdict.operations:,} operations ({verdict.unknown:,} of unknown outcome, {verdict.failed:,} failed) of "
        f"{verdict.runs:,} run{'s' if verdict.runs != 1 else ''}; keys: {keys or 'none'}; "
        f"{verdict.revision_gaps:,} revisions not among the acknowledged{''.join(f'; {words}' for words in judged)}"
    )


def _properties(verdict: Verdict) -> Iterator[str]:
    for name, prop in verdict.properties.items():
        outcome, status = (_OUTCOMES[prop.status], prop.status) if prop.checked else ("nothing to check", "none")
        counts = (f"<td>{n:,}</td>" if n else "<td>–</td>" for n in (prop.checked, prop.violated, prop.undecided))
        yield f'<tr><th>{PROPERTIES[name]}</th>{"".join(counts)}<td class="{status}">{outcome}</td></tr>'


def _violations(verdict: Verdict, material: Material) -> Iterator[str]:
    error_ns = {plot.axis.run_id: plot.clock_error_ns for plot in material.plots}
    for number, (violation, bars) in enumerate(_in_order(verdict, material), 1):
        yield f'<section class="found" id="violation-{number}">'
        where = f"run {violation.run_id}" + (f", key {violation.key}" if violation.key is not None else "")
        yield f"<h2>{number}. {PROPERTIES[violation.property]}: violated <small>{_text(where)}</small></h2>"
        yield f"<p>{_text(violation.words())}</p>"
        if violation.operations:
            if shares_no_axis(bars):
                yield f"<p><small>{_SEVERAL_AXES}</small></p>"
            yield from _clock_error(error_ns.get(violation.run_id, 0))
            yield f"<figure>{_TOOLS}{draw_scene(bars, violation.words())}</figure>"
            yield from _table(violation)
        yield "</section>"
    hidden = sum(prop.violated for prop in verdict.properties.values()) - len(verdict.violations)
    if hidden > 0:
        yield f"<p>… and {hidden:,} more violations (the first {SHOWN_MAX} of each property are shown)</p>"


def _in_order(verdict: Verdict, material: Material) -> list[tuple[Violation, tuple[Bar, ...]]]:
    """Return the violations with their bars, sorted, so that the order in which Spark tasks end does not matter."""
    pairs = zip(verdict.violations, material.scenes, strict=True)
    names = list(PROPERTIES)
    return sorted(pairs, key=lambda pair: (names.index(pair[0].property), pair[0].run_id, pair[0].words()))


def _table(violation: Violation) -> Iterator[str]:
    start = min(op.call_ns for op in violation.operations)
    yield "<table><tr><th>called</th><th>returned</th><th>client</th><th>operation</th></tr>"
    for op in violation.operations:
        end = f"{(op.return_ns - start) / 1e6:+.3f} ms" if op.return_ns is not None else "never"
        called = f"{(op.call_ns - start) / 1e6:+.3f} ms"
        yield f"<tr><td>{called}</td><td>{end}</td><th>{_text(op.client)}</th><th>{_text(op.words)}</th></tr>"
    yield "</table>"


def _undecided(verdict: Verdict) -> Iterator[str]:
    if not verdict.undecided:
        return
    yield "<section><h2>Undecided</h2><ul>"
    for question in verdict.undecided:
        where = f"run {question.run_id}" + (f", key {question.key}" if question.key is not None else "")
        yield f"<li><b>{PROPERTIES[question.property]}</b>, {_text(where)}: {_text(question.reason)}</li>"
    hidden = sum(prop.undecided for prop in verdict.properties.values()) - len(verdict.undecided)
    if hidden > 0:
        yield f"<li>… and {hidden:,} more</li>"
    yield "</ul></section>"


def _plots(verdict: Verdict, material: Material) -> Iterator[str]:
    for plot in material.plots:
        clock = f", clock {plot.axis.clock}" if _is_one_of_many(plot, material.plots) else ""
        yield f"<h3>run {_text(plot.axis.run_id + clock)}</h3>"
        yield from _clock_error(0 if plot.axis.clock else plot.clock_error_ns)
        yield f"<figure>{_TOOLS}{draw_plot(plot, _marks(verdict, material, plot))}</figure>"
    if material.plots_left_out:
        yield f"<p>… and {material.plots_left_out:,} more ({PLOTS_MAX} are drawn, those with violations first)</p>"


def _clock_error(error_ns: int) -> Iterator[str]:
    if error_ns:
        yield f"<p><small>{_CLOCK_ERROR.format(span(error_ns))}</small></p>"


def _is_one_of_many(plot: Plot, plots: Sequence[Plot]) -> bool:
    return sum(other.axis.run_id == plot.axis.run_id for other in plots) > 1


def _marks(verdict: Verdict, material: Material, plot: Plot) -> list[tuple[int, str]]:
    """Return, for each violation of the run, (call, words) of its first operation on the axis of the plot."""
    found: list[tuple[int, str]] = []
    for number, (violation, bars) in enumerate(_in_order(verdict, material), 1):
        if violation.run_id == plot.axis.run_id:
            found += [(bar.call_ns, f"violation {number}: {bar.words}") for bar in bars if _is_marked(bar, plot)][:1]
    return found


def _is_marked(bar: Bar, plot: Plot) -> bool:
    """Return whether the bar is part of a violation, has the clock of the plot's axis, and begins on this axis."""
    end_ns = plot.axis.start_ns + plot.axis.buckets * plot.axis.width_ns
    return bar.guilty and bar.clock == plot.axis.clock and plot.axis.start_ns <= bar.call_ns <= end_ns

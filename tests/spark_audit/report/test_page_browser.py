"""The page in a real browser: its console stays empty, and its buttons work."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from spark_audit import Shape, generate, inject
from tests.spark_audit.support.pages import page_of

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--enable-logging=stderr")

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH (chromium, chromium-browser, google-chrome)"),
]

PROBE = """<script>
window.onload = () => {
  const svg = document.querySelector("svg"), seen = [], note = () => seen.push(svg.getAttribute("viewBox"));
  note();
  for (const name of ["all", "in", "right", "left", "out"]) {
    document.querySelector(`button[data-do=${name}]`).click();
    note();
  }
  svg.dispatchEvent(new WheelEvent("wheel", { deltaY: -200, ctrlKey: true, clientX: 500, clientY: 200 }));
  note();
  const told = document.createElement("pre");
  told.id = "probe";
  told.textContent = JSON.stringify({ seen, tools: document.querySelectorAll(".tools:not([hidden])").length });
  document.body.append(told);
};
</script>"""


def _opened(page: str, folder: Path) -> tuple[str, list[str]]:
    """The document after its scripts have run, and the messages on its console."""
    file = folder / "page.html"
    file.write_text(page, encoding="utf-8")
    run = subprocess.run(
        [str(CHROMIUM), *FLAGS, f"--user-data-dir={folder / 'profile'}", "--dump-dom", file.as_uri()],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return run.stdout, [line for line in run.stderr.splitlines() if ":CONSOLE" in line]


def _page() -> str:
    rows, read = inject(generate(Shape(operations=1_500, delete_share=0.0), 7), "stale_read", 7)
    for row in rows:
        if row["key"] == read["key"] and row["value"] is not None:
            row["value"] = f"<script>console.error('escaped')</script>{row['value']}"
        output = row["output"]
        if row["key"] == read["key"] and output and output["value"] is not None:
            output["value"] = f"<script>console.error('escaped')</script>{output['value']}"
        if row["key"] == read["key"] and row["expected"] is not None:
            row["expected"] = f"<script>console.error('escaped')</script>{row['expected']}"
    return page_of(rows)


def test_the_buttons_zoom_and_move_and_the_console_stays_silent(tmp_path: Path) -> None:
    document, console = _opened(_page().replace("</body>", f"{PROBE}</body>"), tmp_path)

    assert console == []
    found = re.search(r'<pre id="probe">(.*?)</pre>', document)
    assert found is not None, "the probe did not run"
    reported: dict[str, Any] = json.loads(html.unescape(found[1]))
    _, everything, nearer, later, back, wide, wheeled = ([float(n) for n in box.split()] for box in reported["seen"])
    assert everything[0::2] == [0, 1100]
    assert nearer[2] == 550
    assert nearer[0] > 0
    assert later[0] == nearer[0] + 550 / 4
    assert back == nearer
    assert wide == everything
    assert wheeled[2] < wide[2]
    assert reported["tools"] == 2


def test_an_error_on_the_console_would_have_been_seen(tmp_path: Path) -> None:
    """The test above relies on an empty console. So this test checks that an error would appear there."""
    _, console = _opened(_page().replace("</body>", "<script>nothing.at.all();</script></body>"), tmp_path)

    assert any("nothing is not defined" in line for line in console)

"""The programs of docs/reference/callers.md run, and their output is the output on the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from kvstore.connection_url import parse_url

pytestmark = [pytest.mark.timeout(60)]

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "reference" / "callers.md").read_text("utf-8")
PROGRAMS = dict(re.findall(r"^## (.*?)\n(?:(?!^## ).)*?```python\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE))

PRINTED = {
    "Asyncio": "b'hello'\n",
    "Threads": "b'hello'\nb'bye'\n",
    "A member inside the program": "",
}


def test_each_program_of_the_page_is_run() -> None:
    assert list(PROGRAMS) == list(PRINTED)


@pytest.mark.parametrize("name", PRINTED)
def test_a_program_prints_what_it_says(
    name: str,
    member_address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    source = re.sub(r"\[\"127\.0\.0\.1:7101.*?\]", f'["{member_address}"]', PROGRAMS[name])
    program: dict[str, Any] = {}
    exec(source, program)

    assert capsys.readouterr().out == PRINTED[name]


def test_the_url_of_the_page_can_be_read() -> None:
    (url,) = re.findall(r"^(hwm://\S+)$", PAGE, re.MULTILINE)

    found = parse_url(url.replace("0f…", "0f" * 16))

    assert (found.user, str(found.password_file)) == ("ada", "ada.password")
    assert (len(found.endpoints), found.prefix, sorted(found.options)) == (
        2,
        b"service/",
        ["cluster_id", "deadline_seconds", "tls"],
    )

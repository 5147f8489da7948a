"""Writes a page of HTML to a file."""

from __future__ import annotations

from pathlib import Path

from harness.errors import BadInput

_HINT = "name a file in a folder that is there"


def check_page_path(path: Path) -> None:
    """Check, before the work begins, that the page can be written into its folder. Raises BadInput."""
    if path.is_dir():
        raise BadInput(f"{path} is a folder", "name a file in it")
    if not path.parent.is_dir():
        raise BadInput(f"{path} cannot be written: there is no folder {path.parent}", _HINT)


def write_page(path: Path, page: str) -> None:
    """Write the page. Raises BadInput."""
    try:
        path.write_text(page, encoding="utf-8", newline="\n")
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error}", _HINT) from error

"""Lists of named numbers in the options of `hwm-harness run`, such as `watches=100,leases=4`; `none` is the empty
list."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from harness.errors import BadInput


def parse_named_numbers(text: str, names: Sequence[str], option: str) -> dict[str, str]:
    """Return the text of each number by its name; the text is empty if the list has only the name.

    Raises BadInput if a name is not in `names`, or occurs twice. The error suggests the nearest name.
    """
    numbers: dict[str, str] = {}
    for part in text.split(",") if text.strip() != "none" else ():
        name, _, number = part.strip().partition("=")
        if name not in names or name in numbers:
            near = get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the names are {', '.join(names)}; or none"
            raise BadInput(f"{option} {text!r}: the name {name!r} is unknown, or comes twice", hint)
        numbers[name] = number
    return numbers

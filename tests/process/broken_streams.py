"""Runs many commands of `hwm` in processes whose standard streams are broken: `python -m tests.process.broken_streams`.

The program reads a list of cases from the file that its first argument names, and writes their outcomes to the file
that its second argument names. Each case runs in a child process. The child is forked from this process, which has
already loaded the commands, so a case takes milliseconds.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

SOUND = "sound"
BROKEN = (
    "output full", "words full", "both full", "output closed", "words closed", "all closed", "output unread",
    "words unread",
)  # fmt: skip
"""The broken streams of a case, and the way in which they are broken. `words` is standard error. `all` includes
standard input."""

DESCRIPTORS = tuple(f"{count} descriptors" for count in range(5, 12))


def has_lost_output(kind: str) -> bool:
    """True if this process cannot write to its standard output."""
    return kind.startswith(("output", "both", "all"))


def main() -> None:
    """Run all cases, each in a child process, and write their outcomes."""
    from kvstore.cli.main import COMMANDS

    for module, _ in COMMANDS.values():
        import_module(module)
    cases = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    results = [_run(case["arguments"], case["kind"], Path(sys.argv[2])) for case in cases]
    Path(sys.argv[2]).write_text(json.dumps(results), encoding="utf-8")


def _run(arguments: Sequence[str], kind: str, place: Path) -> dict[str, Any]:
    texts = [place.with_suffix(".out"), place.with_suffix(".err")]
    process_id = os.fork()
    if process_id == 0:
        code = 99
        try:
            for descriptor, path in enumerate(texts, 1):
                _redirect(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
            _break(kind)
            code = _exit_code(arguments)
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(process_id, 0)[1])
    output, words = (path.read_text(encoding="utf-8", errors="replace") for path in texts)
    return {"code": code, "output": output, "words": words}


def _exit_code(arguments: Sequence[str]) -> int:
    from kvstore.cli.main import main

    sys.argv = ["hwm", *arguments]
    try:
        main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 98
    except BaseException:
        traceback.print_exc()
        return 1
    return 97


def _break(kind: str) -> None:
    which, _, how = kind.partition(" ")
    if how == "descriptors":
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(which), int(which)))
        return
    streams = {"output": (1,), "words": (2,), "both": (1, 2), "all": (0, 1, 2)}.get(which, ())
    for descriptor in streams:
        if how == "full":
            _redirect(os.open("/dev/full", os.O_WRONLY), descriptor)
        elif how == "unread":
            reader, writer = os.pipe()
            os.close(reader)
            _redirect(writer, descriptor)
        else:
            os.close(descriptor)
            name = ("stdin", "stdout", "stderr")[descriptor]
            setattr(sys, name, None)  # At its start, the interpreter does this for a closed stream.
            setattr(sys, f"__{name}__", None)


def _redirect(source: int, descriptor: int) -> None:
    os.dup2(source, descriptor)
    os.close(source)


if __name__ == "__main__":
    main()

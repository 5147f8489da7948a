"""`hwm-audit import` reads each line by the rules of its format, or refuses it. The histories are hand-written."""

from __future__ import annotations

import errno
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from spark_audit import check_rows
from spark_audit.cli import cli
from spark_audit.imports import writing

LINES = ("0 :invoke :write 1", "1 :invoke :read nil", "0 :ok :write 1", "1 :ok :read 1", "0 :invoke :cas [1 2]",
         "1 :invoke :cas [5 6]", "1 :fail :cas [5 6]", "0 :info :cas [1 2]", "2 :invoke :read nil", "2 :ok :read 2",
         "1 :invoke :write 3")  # fmt: skip


def _edn(lines: Sequence[str] = LINES, more: str = "") -> list[str]:
    split = (line.split(" ", 3) for line in lines)
    return [f"{{:process {p}, :type {t}, :f {f}, :value {v}{more}}}" for p, t, f, v in split]


def _tabs(lines: Sequence[str] = LINES) -> list[str]:
    return ["\t".join(line.split(" ", 3)) for line in lines]


def _import(folder: Path, name: str, lines: Sequence[str], *options: str, out: str = "out.jsonl") -> Result:
    (folder / "history.txt").write_text("\n".join(lines) + "\n")
    arguments = ["import", name, str(folder / "history.txt"), "--out", str(folder / out), *options]
    return CliRunner().invoke(cli, arguments)


def _rows(folder: Path, name: str, lines: Sequence[str], *options: str) -> list[dict[str, Any]]:
    """The imported rows, in the order of their calls. The first values of registers are puts."""
    result = _import(folder, name, lines, "--force", *options)
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    return sorted(rows, key=lambda row: int(row["op_id"]))


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _status(folder: Path, name: str, lines: Sequence[str], *options: str) -> str:
    return check_rows(_rows(folder, name, lines, *options)).status


def test_each_line_of_jepsen_becomes_what_it_says(tmp_path: Path) -> None:
    """:ok means that the operation happened, and :fail means that it certainly did not happen. After :info, or without
    a completion, the operation may happen at any later time."""
    rows = _rows(tmp_path, "jepsen-edn", _edn())

    assert [(r["client"], r["op"], r.get("expected"), r.get("value"), r["status"]) for r in rows] == [
        ("initial register", "put", None, "nil", "ok"),
        ("0", "put", None, "1", "ok"),
        ("1", "get", None, None, "ok"),
        ("0", "cas", "1", "2", "unknown"),
        ("1", "cas", "5", "6", "fail"),
        ("2", "get", None, None, "ok"),
        ("1", "put", None, "3", "unknown"),
    ]
    assert rows[2]["output"] == {"found": True, "value": "1"}
    assert rows[3]["return_ns"] is None
    assert rows[6]["return_ns"] is None
    assert check_rows(rows).status == "linearizable"


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "INFO  jepsen.util - ",
        "INFO [2015-02-18 12:01:02,345] jepsen worker 3 - jepsen.util ",
        "2021-02-26 23:39:01,300{GMT}\tINFO\t[jepsen worker 1] jepsen.util: ",
    ],
)
def test_printed_lines_of_any_age_say_the_same_as_maps(tmp_path: Path, prefix: str) -> None:
    """The versions of Jepsen print different prefixes before the lines, and history.txt has no prefixes."""
    printed = _rows(tmp_path, "jepsen-log", [prefix + line for line in _tabs()])

    assert printed == _rows(tmp_path, "jepsen-edn", _edn())


def test_a_vector_or_list_of_maps_says_the_same_as_one_map_per_line(tmp_path: Path) -> None:
    """The data of Knossos has all three forms of a history, with comments in between, and it also has records."""
    plain = _edn()
    vector = ["[" + plain[0], *plain[1:-1], plain[-1] + "]"]
    listed = ["(" + plain[0] + " ; the first", *("#jepsen.history.Op" + line for line in plain[1:]), ")"]

    assert _rows(tmp_path, "jepsen-edn", plain) == _rows(tmp_path, "jepsen-edn", vector)
    assert _rows(tmp_path, "jepsen-edn", plain) == _rows(tmp_path, "jepsen-edn", listed)


def test_other_processes_and_other_lines_are_left_out_and_counted(tmp_path: Path) -> None:
    """A log ends with printed results of the checkers. The results are maps, and their lines look a little like
    operations."""
    nemesis = "INFO  jepsen.util - :nemesis\t:info\t:start\tnil"
    results = ["{:type :ok,", " :type :ok,", " :f :read,", " 2 :read,", "jepsen.util - Run complete"]
    result = _import(tmp_path, "jepsen-log", [nemesis, "", *_tabs(), nemesis, *results])

    assert result.exit_code == 0
    assert "left out: 2 events of :nemesis, 5 other lines" in result.output
    assert "6 operations (1 failed, 2 of unknown outcome) on 1 key, 1 run" in result.output


def test_a_failed_compare_and_set_says_nothing_or_that_it_saw_another_value(tmp_path: Path) -> None:
    """An option selects the meaning of a failed compare-and-set. With the second meaning, a store that refuses a valid
    compare-and-set breaks a rule."""
    lines = ["0 :invoke :write 1", "0 :ok :write 1", "0 :invoke :cas [1 2]", "0 :fail :cas [1 2]"]

    for name, written in (("jepsen-edn", _edn(lines)), ("jepsen-log", _tabs(lines))):
        assert _status(tmp_path, name, written) == "linearizable"
        assert _status(tmp_path, name, written, "--failed-cas", "saw-another") == "violation"


def test_a_failed_compare_and_set_that_names_an_error_says_nothing_of_the_value(tmp_path: Path) -> None:
    """The compare-and-set failed for a reason other than the comparison, such as an unreachable node."""
    before = ["0 :invoke :write 1", "0 :ok :write 1", "0 :invoke :cas [1 2]"]
    edn = [*_edn(before), "{:process 0, :type :fail, :f :cas, :value [1 2], :error [:refused nil]}"]

    for name, lines in (
        ("jepsen-edn", edn),
        ("jepsen-log", [*_tabs(before), "0\t:fail\t:cas\t:timed-out"]),
        ("jepsen-log", [*_tabs(before), "0\t:fail\t:cas\t[1 2]\t{:type :x} no EDN )"]),
    ):
        rows = _rows(tmp_path, name, lines, "--failed-cas", "saw-another")
        assert rows[-1]["status"] == "fail"
        assert check_rows(rows).status == "linearizable"
        assert "do not show the value" in _import(
            tmp_path, name, lines, "--force", "--failed-cas", "saw-another"
        ).output  # fmt: skip


def test_a_read_of_nil_says_that_the_register_held_nil_or_nothing(tmp_path: Path) -> None:
    """Porcupine gives a read of nil the first meaning, and Knossos gives it the second."""
    lines = _edn(["0 :invoke :write 1", "0 :ok :write 1", "0 :invoke :read nil", "0 :ok :read nil"])

    assert _status(tmp_path, "jepsen-edn", lines) == "violation"
    assert _status(tmp_path, "jepsen-edn", lines, "--nil-read", "unknown") == "linearizable"


def test_nil_is_a_value_that_can_be_written_and_compared(tmp_path: Path) -> None:
    lines = ["0 :invoke :cas [nil 1]", "0 :ok :cas [nil 1]", "0 :invoke :cas [1 nil]", "0 :ok :cas [1 nil]",
             "0 :invoke :read nil", "0 :ok :read nil", "0 :invoke :write nil", "0 :ok :write nil"]  # fmt: skip

    assert _status(tmp_path, "jepsen-edn", _edn(lines)) == "linearizable"
    again = [*lines, "0 :invoke :cas [1 2]", "0 :ok :cas [1 2]"]
    assert _status(tmp_path, "jepsen-edn", _edn(again)) == "violation"


def test_a_register_holds_at_first_what_it_is_said_to(tmp_path: Path) -> None:
    lines = _edn(["0 :invoke :read nil", "0 :ok :read 0"])

    assert _status(tmp_path, "jepsen-edn", lines) == "violation"
    assert _status(tmp_path, "jepsen-edn", lines, "--initial", "0N") == "linearizable"
    assert _import(tmp_path, "jepsen-edn", lines, "--force", "--initial", "[").exit_code == 2


def test_values_of_many_registers_carry_their_key(tmp_path: Path) -> None:
    """The form is the one of `jepsen.independent`. The first operation shows the form of the history, unless an option
    states it."""
    keyed = ["0 :invoke :write [7 1]", "1 :invoke :read [:x nil]", "0 :ok :write [7 1]", "1 :ok :read [:x nil]",
             "0 :invoke :cas [7 [1 2]]", "0 :ok :cas [7 [1 2]]", "1 :invoke :read [7 nil]",
             "1 :ok :read [7 2]"]  # fmt: skip

    for name, lines in (("jepsen-edn", _edn(keyed)), ("jepsen-log", _tabs(keyed))):
        rows = _rows(tmp_path, name, lines)
        assert [row["key"] for row in rows if row["client"].startswith("initial")] == ["7", ":x"]
        assert check_rows(rows).status == "linearizable"
    pairs = _edn(["0 :invoke :write [1 2]", "0 :ok :write [1 2]", "0 :invoke :read nil", "0 :ok :read [1 2]"])
    assert _import(tmp_path, "jepsen-edn", pairs, "--force").exit_code == 2  # The read names no key.
    assert _status(tmp_path, "jepsen-edn", pairs, "--keys", "one") == "linearizable"


def test_stamps_are_the_times_of_the_history_and_keep_the_order_of_its_lines(tmp_path: Path) -> None:
    """Knossos uses the order of the lines, so the import keeps it even for lines of the same time."""
    timed = [line.replace("}", f", :time {time}}}") for line, time in zip(_edn(), (10, 10, 9, *[500] * 8), strict=True)]
    rows = _rows(tmp_path, "jepsen-edn", timed)

    assert [(row["call_ns"], row["return_ns"]) for row in rows] == [
        (9, 9), (10, 12), (11, 500), (501, None), (502, 503), (505, 506), (507, None)
    ]  # fmt: skip
    numbered = _rows(tmp_path, "jepsen-edn", _edn())
    # Without times, the line numbers become the stamps.
    assert [row["call_ns"] / 10**6 for row in numbered[1:]] == [1, 2, 5, 6, 9, 11]


def test_two_operations_one_after_the_other_at_the_same_time_are_not_concurrent(tmp_path: Path) -> None:
    lines = _edn(["0 :invoke :write 1", "0 :ok :write 1", "1 :invoke :read nil", "1 :ok :read nil"], ", :time 5")

    assert _status(tmp_path, "jepsen-edn", lines) == "violation"


def _kv(*lines: str) -> list[str]:
    split = (line.split(" ", 4) for line in lines)
    return [f"{{:process {p}, :type :{t}, :f :{f}, :key {k}, :value {v}}}" for p, t, f, k, v in split]


def test_porcupines_appends_are_read_in_some_order(tmp_path: Path) -> None:
    """Porcupine's data has puts, gets and appends. Each key contains the empty text at first. Quotation marks in this
    data are not escaped."""
    lines = _kv('0 invoke get "k" nil', '0 ok get "k" ""', '0 invoke append "k" "x " y"', '1 invoke append "k" "z"',
                '1 ok append "k" "z"', '0 ok append "k" "x " y"', '0 invoke get "k" nil',
                '0 ok get "k" "zx " y"')  # fmt: skip

    assert _status(tmp_path, "porcupine-kv", lines) == "linearizable"
    again = [*lines, *_kv('1 invoke get "k" nil', '1 ok get "k" "x " yz"')]
    assert _status(tmp_path, "porcupine-kv", again) == "violation"
    put = [*lines, *_kv('1 invoke put "k" ""', '1 ok put "k" ""', '1 invoke get "k" nil', '1 ok get "k" ""')]
    assert _status(tmp_path, "porcupine-kv", put) == "linearizable"


@pytest.mark.parametrize(
    ("name", "lines", "line", "words"),
    [
        ("jepsen-edn", _edn(["0 :invoke :write 1", "0 :info :write 1", "0 :invoke :write 2"]), 3,
         "expected a new process number: the operation of 0 ended unknown on line 2, found process 0 going on"),
        ("jepsen-edn", _edn(["0 :invoke :write 1", "0 :invoke :write 2"]), 2, "process 0 from line 1"),
        ("jepsen-edn", _edn(["0 :invoke :write 1", "1 :ok :write 1"]), 2, "an invocation by process 1 before this"),
        ("jepsen-edn", _edn(["0 :invoke :write 1", "0 :ok :read 1"]), 2, "expected the end of the write of line 1"),
        ("jepsen-edn", _edn(["0 :invoke :write 1", "0 :ok :write 2"]), 2, "the value of line 1, 1, found 2"),
        ("jepsen-edn", _edn(["0 :invoke :cas [1 2]", "0 :ok :cas [2 2]"]), 2, "of line 1, [1 2], found [2 2]"),
        ("jepsen-edn", ["{:process 0, :type {:a 1}}"], 1, "expected :type :invoke, :ok, :fail or :info, found {:a 1}"),
        ("jepsen-edn", _edn(["true :invoke :read nil"]), 1, "a :process that is a number"),
        ("jepsen-edn", _edn(["0 :invoke :cas [1 2 3]"]), 1, "a value [expected new] of a :cas, found [1 2 3]"),
        ("jepsen-edn", _edn(["0 :invoke :enqueue 1"]), 1, "expected :f :read, :write or :cas, found :enqueue"),
        ("jepsen-edn", _edn(["0 :begin :read 1"]), 1, "expected :type :invoke, :ok, :fail or :info, found :begin"),
        ("jepsen-edn", _edn(["-1 :invoke :read 1"]), 1, "a :process that is a number"),
        ("jepsen-edn", _edn(["0 :invoke :read 1"], ", :time 1.5"), 1, "a :time in nanoseconds, found 1.5"),
        ("jepsen-edn", [*_edn(["0 :invoke :read 1"], ", :time 3000000000"), *_edn(["0 :ok :read 1"], ", :time 5")], 2,
         "lines in the order of time"),
        ("jepsen-edn", ["[1 2]"], 1, "expected a map such as"),
        ("jepsen-edn", [*_edn(["0 :invoke :read nil"]), "", "{:process 0"], 3, "the end of a map begun on line 3"),
        ("jepsen-edn", _edn(["0 :invoke :write [1 2]", "1 :invoke :read nil"]), 2, "a value [key value]"),
        ("jepsen-log", [*_tabs(LINES[:2]), "INFO  jepsen.util - 0\t:ok"], 3, "process, type, f and value"),
        ("jepsen-log", [*_tabs(LINES[:2]), "INFO  jepsen.util - 0\t:ok\t:write\t[1"], 3, "the end of a vector"),
        ("jepsen-log", [*_tabs(LINES[:2]), "0\t:ok\t:write"], 3, "process, type, f and value"),
        ("porcupine-kv", ["", "{:process 0, :type :invoke, :f :get}"], 2, "expected {:process 0, :type :invoke"),
        ("porcupine-kv", _kv('0 invoke get "" nil'), 1, "a key that is not empty"),
        ("porcupine-kv", _kv('0 invoke put "k" nil'), 1, "a text as :value of invoke put, found nil"),
        ("porcupine-kv", _kv('0 invoke put "k" "base64:YQ=="'), 1, "do not begin with base64:"),
        ("porcupine-kv", _kv('0 invoke put "k" "v"', '0 ok put "j" "v"'), 2, "expected key k, as on line 1, found j"),
    ],
)  # fmt: skip
def test_a_malformed_line_is_named_with_what_was_expected_and_nothing_is_written(
    tmp_path: Path, name: str, lines: list[str], line: int, words: str
) -> None:
    result = _import(tmp_path, name, lines)

    assert result.exit_code == 2, result.output
    assert f"{tmp_path / 'history.txt'}:{line}: " in result.output
    assert words in result.output
    assert _names(tmp_path) == ["history.txt"]


def test_bytes_that_are_no_text_are_refused_on_their_line(tmp_path: Path) -> None:
    (tmp_path / "bad.edn").write_bytes("\n".join(_edn(LINES[:3])).encode() + b"\n{:process 4, :value \xff}")
    result = CliRunner().invoke(
        cli, ["import", "jepsen-edn", str(tmp_path / "bad.edn"), "--out", str(tmp_path / "o.jsonl")]
    )

    assert result.exit_code == 2
    assert "bad.edn:4: expected UTF-8" in result.output


def test_a_file_that_is_there_stays_as_it_is_unless_told_and_until_the_new_one_is_whole(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_text("mine\n")

    assert _import(tmp_path, "jepsen-edn", _edn()).exit_code == 2
    assert _import(tmp_path, "jepsen-edn", [*_edn(), "}"], "--force").exit_code == 2
    assert (tmp_path / "out.jsonl").read_text() == "mine\n"
    assert _import(tmp_path, "jepsen-edn", _edn(), "--force").exit_code == 0
    assert "initial register" in (tmp_path / "out.jsonl").read_text()
    assert _names(tmp_path) == ["history.txt", "out.jsonl"]


def test_files_without_operations_other_names_and_the_same_file_twice_are_refused(tmp_path: Path) -> None:
    assert "holds no operation" in _import(tmp_path, "jepsen-log", ["nothing of Jepsen's"]).output
    assert "ends in .jsonl or .parquet" in _import(tmp_path, "jepsen-edn", _edn(), out="out.csv").output
    twice = ["import", "jepsen-edn", str(tmp_path / "history.txt"), str(tmp_path / "history.txt"), "--out", "x.jsonl"]
    assert "is given twice" in CliRunner().invoke(cli, twice).output
    missing = ["import", "jepsen-edn", str(tmp_path / "none.edn"), "--out", str(tmp_path / "x.jsonl")]
    result = CliRunner().invoke(cli, missing)
    assert result.exit_code == 2
    assert "none.edn: cannot be read: No such file" in result.output
    assert _names(tmp_path) == ["history.txt"]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_folder_that_is_not_there_is_named(tmp_path: Path, suffix: str) -> None:
    result = _import(tmp_path, "jepsen-edn", _edn(), out=f"no/out.{suffix}")

    assert result.exit_code == 2
    assert f"no/out.{suffix}: cannot be written" in result.output


def test_a_disk_that_fails_leaves_nothing_and_is_not_taken_for_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        def __init__(self, path: Path) -> None:
            path.write_text("half")

        def write(self, row: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None: ...

    monkeypatch.setattr(writing, "_JsonLinesWriter", Full)
    result = _import(tmp_path, "jepsen-edn", _edn())

    assert result.exit_code == 1
    assert "out.jsonl: No space left on device; nothing was written" in result.output
    assert _names(tmp_path) == ["history.txt"]


def test_several_files_are_runs_of_their_own(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.edn").write_text("\n".join(_edn()))
    paths = [str(tmp_path / "a.edn"), str(tmp_path / "b.edn")]
    assert CliRunner().invoke(cli, ["import", "jepsen-edn", *paths, "--out", str(tmp_path / "o.jsonl")]).exit_code == 0

    verdict = check_rows(json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines())
    assert (verdict.runs, verdict.operations, verdict.status) == (2, 14, "linearizable")


def test_parquet_holds_the_same_rows_as_json_lines(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = _rows(tmp_path, "jepsen-edn", _edn())
    assert _import(tmp_path, "jepsen-edn", _edn(), out="out.parquet").exit_code == 0

    read = sorted(parquet.read_table(tmp_path / "out.parquet").to_pylist(), key=lambda row: int(row["op_id"]))
    for row in read:
        row["output"] = row["output"] and {name: value for name, value in row["output"].items() if value is not None}
    assert [{name: value for name, value in row.items() if value is not None} for row in read] == [
        {name: value for name, value in row.items() if value is not None} for row in rows
    ]


def test_the_examples_of_the_documentation_are_read_as_it_says(tmp_path: Path) -> None:
    """docs/reference/audit-import.md has one example of each format, and every option."""
    page = (Path(__file__).parents[3] / "docs" / "reference" / "audit-import.md").read_text(encoding="utf-8")
    for fence, name in (("edn", "jepsen-edn"), ("log", "jepsen-log"), ("kv", "porcupine-kv")):
        example = page.split(f"```{fence}\n")[1].split("```")[0]
        assert _status(tmp_path, name, example.splitlines()) == "linearizable"
    for option in cli.commands["import"].params:
        if isinstance(option, click.Option) and option.name != "out":
            assert f"| `{option.opts[0]}" in page

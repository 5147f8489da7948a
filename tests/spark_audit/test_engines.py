"""`hwm-audit check` chooses an engine and names it. The local engine imports nothing of Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from spark_audit import Shape, check_rows, engines, generate, inject
from spark_audit.cli import cli
from spark_audit.engines import engine_for
from spark_audit.history.paths import history_files
from tests.spark_audit.support.histories import write_lines
from tests.spark_audit.support.pages import drawings, groups
from tests.spark_audit.support.tables import write_table


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    rows, _ = inject(generate(Shape(operations=800, delete_share=0.0, multi_key_share=0.05), 5), "lost_write", 5)
    write_lines(tmp_path / "run" / "ops" / "1.jsonl", rows)
    return tmp_path / "run"


@pytest.mark.timeout(60)
def test_a_small_history_is_checked_in_this_process_without_spark_or_pandas(broken: Path) -> None:
    """The local engine imports neither of the two packages, because the imports take longer than the audit."""
    script = (
        "import sys\n"
        "from spark_audit.cli import main\n"
        "try:\n    main()\n"
        "finally:\n    print(sorted({'pandas', 'pyspark', 'py4j'} & set(sys.modules)), file=sys.stderr)\n"
    )
    page = broken.parent / "page.html"
    command = [sys.executable, "-c", script, "check", str(broken), "--json", "--html", str(page)]

    run = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)

    assert run.returncode == 3, run.stderr
    assert json.loads(run.stdout)["engine"] == "local"
    assert run.stderr.strip().splitlines()[-1] == "[]"
    assert "<svg" in page.read_text(encoding="utf-8")


def test_pandas_is_there_for_arrow_when_somebody_wants_it() -> None:
    """Other code in the process can import pandas later, and then gets the whole package."""
    script = (
        "import sys\n"
        "from spark_audit.engines import spare_pandas\n"
        "spare_pandas()\n"
        "import pyarrow as pa\n"
        "assert 'pandas' not in sys.modules\n"
        "print(pa.table({'a': [1, 2]}).to_pandas()['a'].sum())\n"
    )

    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=50, check=False)

    assert run.stdout.strip() == "3", run.stderr


def test_the_verdict_says_which_engine_ran_and_draws_the_same_page(broken: Path) -> None:
    page = broken.parent / "page.html"

    result = CliRunner().invoke(cli, ["check", str(broken), "--engine", "local", "--html", str(page)])
    as_json = CliRunner().invoke(cli, ["check", str(broken), "--json"])

    assert result.exit_code == as_json.exit_code == 3, result.stderr
    assert "in this process" in " ".join(result.stdout.split())
    verdict = json.loads(as_json.stdout)
    rows = [json.loads(line) for line in (broken / "ops" / "1.jsonl").read_text().splitlines()]
    assert verdict["violations"][0]["text"] == check_rows(rows).violations[0].text
    scene, *_ = drawings(page.read_text(encoding="utf-8"))
    assert len(groups(scene, "guilty")) == len(verdict["violations"][0]["operations"])


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_what_may_not_fit_in_memory_is_left_to_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    """The choice depends on the numbers of rows and bytes. For a replay of the store, a history needs many times more
    memory."""
    for name, share in (("plain", 0.0), ("multi_key", 0.2)):
        rows = generate(Shape(operations=1_000, multi_key_share=share), 1)
        if suffix == "jsonl":
            write_lines(tmp_path / f"{name}.jsonl", rows)
        else:
            write_table(tmp_path / f"{name}.parquet", rows)
    plain, multi_key = (history_files([str(tmp_path / f"{name}.{suffix}")]) for name in ("plain", "multi_key"))
    needed = {file.path.stem: engines._bytes_for(file) for file in (*plain, *multi_key)}
    assert 650 * 1_000 < needed["plain"] < 2_500 * 1_000
    assert 6_000 * 1_000 < needed["multi_key"] < 8_500 * 1_000

    for bound, expected in ((needed["plain"] - 1, "spark"), (needed["plain"], "local")):
        monkeypatch.setattr(engines, "LOCAL_BYTES_MAX", engines._ALWAYS_BYTES + bound)
        assert engine_for(plain) == expected
        assert engine_for(multi_key) == "spark"


@pytest.mark.parametrize("option", [["--master", "local[1]"], ["--remote", "sc://somewhere"]])
def test_a_spark_that_is_named_is_not_the_local_engine(broken: Path, option: list[str]) -> None:
    result = CliRunner().invoke(cli, ["check", str(broken), "--engine", "local", *option])

    assert result.exit_code == 2
    assert f"{option[0]} is an option of Spark" in result.stderr


def test_a_file_that_is_no_table_is_refused_by_the_engine_and_not_by_the_choice_of_it(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no more")

    result = CliRunner().invoke(cli, ["check", str(tmp_path)])

    assert result.exit_code == 2
    assert "is not a Parquet file" in result.stderr

"""Plan files can be complete or short. A wrong file is refused with a reason."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from harness.errors import BadInput
from harness.sim.plan.draw import draw_plan
from harness.sim.plan.plan_file import plan_text, read_plan, write_plan
from harness.sim.simulation import Simulation

ROOT = Path(__file__).resolve().parents[3]


def test_every_plan_that_a_seed_draws_is_read_back_as_it_was(tmp_path: Path) -> None:
    """If a field was missing in the file, the run would be different."""
    path = tmp_path / "plan.toml"
    for seed in range(1, 120):
        plan = draw_plan(seed)

        write_plan(plan, path, "what it shows")

        assert read_plan(path) == plan


def test_a_file_says_only_what_is_unusual_and_has_a_table_for_each_fault() -> None:
    """A person can easily read the short file."""
    plan = draw_plan(1)

    text = plan_text(plan, "One line.\nAnother.")

    assert text.startswith("# One line.\n# Another.\nseed = 1\n")
    assert text.count("[[faults]]\nat_ns = ") == len(plan.faults) > 1
    tree = tomllib.loads(text)
    assert "profile" not in tree or tree["profile"] != "as drawn"
    assert "in_order" not in tree["network"] or tree["network"]["in_order"] is False


def test_a_file_that_says_nothing_but_its_seed_is_a_plan(tmp_path: Path) -> None:
    """This is the usual plan: three members, a calm world, one client."""
    path = tmp_path / "plan.toml"
    path.write_text("seed = 7\n", encoding="utf-8")

    plan = read_plan(path)

    assert (plan.seed, plan.members, plan.faults, plan.load.clients) == (7, ("n1", "n2", "n3"), (), 1)


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        ("seed = 1\nmembrs = ['n1']", "membrs", "members"),
        ("seed = 1\n[network]\nloss_rat = 0.1", "network.loss_rat", "loss_rate"),
        ("seed = 1\n[network]\nloss_rate = 'much'", "network.loss_rate = 'much'", "a number is wanted"),
        ("seed = 1\n[network]\nloss_rate = 1.5", "network.loss_rate = 1.5", "a share from 0 to 1"),
        ("seed = 1\n[raft]\nheartbeat_interval_ns = 0", "raft = ", "heartbeat_interval_ns must be positive"),
        ("seed = 1\nuntil_ns = -5", "until_ns = -5", "not be below 0"),
        ("seed = true", "seed = True", "a whole number is wanted"),
        ("members = ['n1', 'n1']\nseed = 1", "members", "each member once"),
        ("seed = 1\n[disks.n9]\nsync_ns = 5", "disks.n9", "n1, n2, n3"),
        ("seed = 1\nfaults = [{ at_ns = 5, kind = 'kil', duration_ns = 5, shape = 0.5 }]", "faults[0].kind", "kill"),
        ("seed = 1\nfaults = [{ at_ns = 5, kind = 'kill', shape = 0.5 }]", "faults[0].duration_ns is missing", "write"),
        ("seed = 1\nfaults = 5", "faults = 5", "an array is wanted"),
        ("until_ns = 5", "seed is missing", "write it"),
        ("seed = ", "is not TOML", "quotes"),
    ],
)
def test_a_wrong_file_is_refused_with_file_key_value_and_remedy(text: str, key: str, hint: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(BadInput) as refused:
        read_plan(path)

    assert str(path) in refused.value.problem
    assert key in refused.value.problem
    assert hint in refused.value.hint


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        read_plan(tmp_path / "none.toml")


@pytest.mark.timeout(60)
def test_a_plan_from_a_file_is_the_run_of_its_seed_in_every_process(tmp_path: Path) -> None:
    """The runs are equal bit for bit, for any value of PYTHONHASHSEED."""
    path = tmp_path / "plan.toml"
    plan = draw_plan(3)
    write_plan(plan, path, "seed 3")
    program = (
        "import sys; from pathlib import Path; from harness.sim.plan.plan_file import read_plan\n"
        "from harness.sim.simulation import Simulation\n"
        "print(Simulation(read_plan(Path(sys.argv[1]))).run().trace_hash)"
    )
    hashes = set()
    for hash_seed in ("0", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", program, str(path)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=25, check=True)
        hashes.add(done.stdout.strip())

    assert hashes == {Simulation(plan).run().trace_hash}

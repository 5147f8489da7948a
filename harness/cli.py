"""`hwm-harness`: break a cluster on purpose, and record what clients saw.

Exit codes: 0: the run is sound (and, with --audit, its history is linearizable); 1: an error stopped the harness or the
audit; 2: bad input; 3: the run is not sound, or its history is not linearizable; 4: the audit is undecided; 74: as 0,
but the result could not be written to stdout.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any, NoReturn

import click
from rich.console import Console

from harness.errors import BadInput, HarnessError
from harness.nemesis.capabilities import CONDITIONS, detect_capabilities, usable_faults
from harness.nemesis.schedule import KINDS, plan_faults
from harness.recording.history import close_unfinished_run
from harness.reports.report import report_on
from harness.reports.tables import show_report
from harness.runs.audit import audit
from harness.runs.demo import DemoFailed, run_demo
from harness.runs.failover import measure_failover, show_failover
from harness.runs.hostile import KIND_NAMES, run_hostile, show_hostile
from harness.runs.live_view import run_shown
from harness.runs.rolling_restart import measure_rolling, show_rolling
from harness.runs.settings import FORMATS, RunSettings
from harness.runs.signals import Interrupted, run_until_signal
from harness.runs.soak import Soak, run_soak, show_soak
from harness.workload.levels import NO_LEVELS, LevelShares
from harness.workload.read_modes import USUAL_READ_MODES, ReadModes
from harness.workload.service_shares import NO_SERVICES, ServiceShares
from kvstore import end_with_true_exit_code

_PIPE_WIDTH = 132  # The width of the output in columns, if the output does not go to a terminal.
EXIT_FAILED, EXIT_BAD_INPUT, EXIT_VIOLATION = 1, 2, 3

_out = click.option("--out", type=click.Path(path_type=Path), required=True, help="A new or empty folder for the run.")
_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output.")
_faults = click.option(
    "--faults",
    default="none",
    show_default=True,
    help="A comma-separated list of kinds of faults (`hwm-harness faults` lists them); `none`; or `all`, which means "
    "all kinds that this machine can make.",
)
_interval = click.option(
    "--fault-every",
    "interval_seconds",
    type=click.FloatRange(0.5, 600),
    default=2.5,
    show_default=True,
    help="About how many seconds pass from the start of one fault to the start of the next.",
)
_clients = click.option("--clients", type=int, default=12, show_default=True, help="Concurrent clients.")
_keys = click.option("--keys", type=int, default=24, show_default=True, help="Keys for which the clients contend.")
_in_flight = click.option(
    "--in-flight", type=int, default=1, show_default=True, help="Operations that each client has open at a time."
)
_format = click.option("--format", "ops_format", type=click.Choice(FORMATS), default="jsonl", show_default=True)
_read_ways = click.option(
    "--read-ways",
    default=str(USUAL_READ_MODES),
    show_default=True,
    help="Shares of the reads, by read mode. All other reads are linearizable by a round of heartbeats; with `none`, "
    "all reads are. A share for `lease` starts the members with --lease-reads.",
)
_services = click.option(
    "--services",
    default=str(NO_SERVICES),
    show_default=True,
    help="Numbers of further workers, as in watches=100,leases=4,locks=4,ranges=2,consumers=3. Their operations are "
    "recorded too.",
)
_levels = click.option(
    "--levels",
    default=str(NO_LEVELS),
    show_default=True,
    help="Shares of the writes, by acknowledgement level, as in none=0.05,leader=0.2,in_sync=0.2. All other writes "
    "wait for a majority; with `none`, all writes do.",
)
_rate = click.option("--rate", type=float, default=0.0, help="Operations per second over all clients; 0: no cap.")


class LazyGroup(click.Group):
    """Imports the modules of the commands in `lazy` only when a command is looked up, not when this module is imported.

    The commands in `lazy` run the Raft core in this process. The other commands do not need their modules.
    """

    lazy: dict[str, str] = {  # noqa: RUF012 - click's own style
        "simulate": "harness.sim.cli:simulate",
        "explore": "harness.model_check.cli:explore",
        "mutants": "harness.mutants.cli:mutants",
        "scenario": "harness.scenarios.cli:scenario",
    }

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self.lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.lazy and cmd_name not in self.commands:
            module, name = self.lazy[cmd_name].split(":")
            self.add_command(getattr(importlib.import_module(module), name), cmd_name)
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        for name in self.lazy:
            # Load every command, because any of them may be the suggestion for a mistyped name.
            self.get_command(ctx, name)
        return super().resolve_command(ctx, args)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="highwatermark")
def harness() -> None:
    """Break a highwatermark cluster on purpose, and remember what clients saw."""


@harness.command()
@click.option("--nodes", type=int, default=5, show_default=True, help="Members of the cluster.")
@click.option("--seconds", type=float, default=30.0, show_default=True, help="How long the load lasts.")
@_faults
@_interval
@click.option("--seed", type=int, default=1, show_default=True, help="Seed for the workload and the fault schedule.")
@_out
@_clients
@_keys
@_in_flight
@click.option("--bulk", type=int, default=0, help="Put and get in bulks of this many keys; 0: mixed load.")
@_format
@_rate
@_read_ways
@_services
@_levels
@click.option(
    "--storage",
    type=click.Choice(["small", "usual"]),
    default="small",
    show_default=True,
    help="`small`: limits so small that segments and snapshots are written and deleted within seconds.",
)
@click.option(
    "--ready-seconds",
    type=float,
    default=30.0,
    show_default=True,
    help="How long to wait for the cluster to become ready.",
)
@click.option("--tls", is_flag=True, help="Encrypt all connections, with certificates of members and clients.")
@click.option("--audit", "and_audit", is_flag=True, help="After the run, check its history with hwm-audit.")
@_json
def run(
    nodes: int,
    seconds: float,
    faults: str,
    interval_seconds: float,
    seed: int,
    out: Path,
    clients: int,
    keys: int,
    in_flight: int,
    bulk: int,
    ops_format: str,
    rate: float,
    read_ways: str,
    services: str,
    levels: str,
    storage: str,
    ready_seconds: float,
    tls: bool,
    and_audit: bool,
    as_json: bool,
) -> None:
    """Start NODES servers, put them under load, inject faults, let them recover, and record every operation."""
    modes = ReadModes.parse(read_ways)
    kinds, machine = usable_faults(faults, lease_reads=modes.lease > 0 and not bulk)
    plan = plan_faults(seed=seed, seconds=seconds, kinds=kinds, interval_seconds=interval_seconds)
    settings = RunSettings(
        out=out,
        nodes=nodes,
        seconds=seconds,
        seed=seed,
        plan=plan,
        clients=clients,
        keys=keys,
        in_flight=in_flight,
        bulk=bulk,
        ops_format=ops_format,
        operations_per_second=rate,
        read_modes=modes,
        services=ServiceShares.parse(services),
        levels=LevelShares.parse(levels),
        small_storage=storage == "small",
        ready_seconds=ready_seconds,
        machine=machine,
        tls=tls,
    )
    report = run_until_signal(lambda: run_shown(settings, _words()))
    result = report.to_json()
    exit_code = 0 if report.sound else EXIT_VIOLATION
    if not as_json:
        show_report(report, _data())
    if and_audit:
        verdict = audit([out], as_json=as_json)
        result["audit"] = verdict.to_json()
        exit_code = exit_code or verdict.exit_code
        if not as_json:
            _data().print(f"audit: {verdict.words} ({verdict.seconds:.1f} s)\n{verdict.output}", highlight=False)
    if as_json:
        click.echo(json.dumps(result, indent=2))
    sys.exit(exit_code)


@harness.command()
@click.option("--kills", type=click.IntRange(1, 100_000), default=100, show_default=True, help="Processes to kill.")
@click.option("--seconds", type=float, default=30.0, show_default=True, help="How long the load of each run lasts.")
@click.option("--faults", default="kill,pause,partition", show_default=True, help="As for `run`.")
@_interval
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the first run; each later run adds 1.")
@_out
@_clients
@_keys
@_in_flight
@_rate
@_read_ways
@_services
@_levels
@click.option(
    "--audit/--no-audit", "and_audit", default=True, show_default=True, help="Check all histories at the end."
)
@_json
def soak(
    kills: int,
    seconds: float,
    faults: str,
    interval_seconds: float,
    seed: int,
    out: Path,
    clients: int,
    keys: int,
    in_flight: int,
    rate: float,
    read_ways: str,
    services: str,
    levels: str,
    and_audit: bool,
    as_json: bool,
) -> None:
    """Record runs, alternately with 3 and 5 members, until KILLS processes were killed; then audit all runs at once."""
    modes = ReadModes.parse(read_ways)
    kinds, machine = usable_faults(faults, lease_reads=modes.lease > 0)
    plan = Soak(
        out=out,
        kills=kills,
        seconds=seconds,
        kinds=kinds,
        machine=machine,
        interval_seconds=interval_seconds,
        seed=seed,
        clients=clients,
        keys=keys,
        operations_per_second=rate,
        read_modes=modes,
        services=ServiceShares.parse(services),
        levels=LevelShares.parse(levels),
        in_flight=in_flight,
        audit=and_audit,
    )
    total = run_soak(plan, _words())
    if as_json:
        click.echo(json.dumps(total.to_json(), indent=2))
    else:
        show_soak(total, _data())
    sys.exit(total.exit_code)


@harness.command()
@click.option("--kills", type=click.IntRange(1, 1000), default=10, show_default=True, help="Leaders to kill.")
@click.option("--nodes", type=click.IntRange(2, 9), default=3, show_default=True)
@click.option(
    "--half-open",
    "is_half_open",
    is_flag=True,
    help="Proxies keep the connections of the killed leader open, as if its machine had lost its power.",
)
@click.option("--out", type=click.Path(path_type=Path), default=None, help="Keep the members' logs and data here.")
@_json
def failover(kills: int, nodes: int, is_half_open: bool, out: Path | None, as_json: bool) -> None:
    """Measure the time from kill -9 of the leader to the next acknowledged write.

    The kills alternate between two clusters. In the first cluster, a follower campaigns soon after its connections with
    the leader have ended. In the second cluster, a follower waits for its election time-out (`hwm serve
    --no-leader-loss-hint`).
    """
    result = run_until_signal(
        lambda: measure_failover(kills=kills, nodes=nodes, out=out, console=_words(), is_half_open=is_half_open)
    )
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=2))
    else:
        show_failover(result, _data())


@harness.command()
@click.option(
    "--minutes", type=click.FloatRange(0.1, 24 * 60), default=10.0, show_default=True, help="Time with strangers."
)
@click.option(
    "--seed", type=int, default=1, show_default=True, help="Seed for the workload, the kills and the strangers."
)
@_out
@_clients
@_json
@click.option(
    "--only", default=",".join(KIND_NAMES), help="A comma-separated list of kinds of strangers; by default all."
)
def hostile(minutes: float, seed: int, out: Path, clients: int, only: str, as_json: bool) -> None:
    """Run a cluster with honest clients while strangers send nonsense to every port and members are killed."""
    kinds = [name.strip() for name in only.split(",")]
    result = run_hostile(out=out, seconds=60 * minutes, seed=seed, clients=clients, kinds=kinds, console=_words())
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=2))
    else:
        show_hostile(result, _data())
    sys.exit(result.exit_code)


@harness.command("rolling-restart")
@click.option("--rounds", type=click.IntRange(1, 100), default=3, show_default=True)
@click.option("--nodes", type=click.IntRange(2, 9), default=3, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=None, help="Keep the members' logs and data here.")
@_json
def rolling_restart(rounds: int, nodes: int, out: Path | None, as_json: bool) -> None:
    """Restart every member in turn while clients write. Measure how many writes fail, and for how long no write
    succeeds."""
    result = run_until_signal(lambda: measure_rolling(rounds=rounds, nodes=nodes, out=out, console=_words()))
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=2))
    else:
        show_rolling(result, _data())


@harness.command()
@_json
def faults(as_json: bool) -> None:
    """List all kinds of faults, and try which of them this user can make on this machine."""
    unavailable = detect_capabilities(KINDS).unavailable
    if as_json:
        click.echo(json.dumps({kind: unavailable.get(kind) for kind in KINDS}, indent=2))
    else:
        for kind in KINDS:
            available = f"available{CONDITIONS.get(kind, '')}"
            click.echo(f"{kind:<12} {'unavailable: ' + unavailable[kind] if kind in unavailable else available}")


@harness.command()
@click.argument("folder", type=click.Path(path_type=Path))
@_json
def report(folder: Path, as_json: bool) -> None:
    """Print the report of a recorded run again, from the files of the run."""
    summary = report_on(folder)
    if as_json:
        click.echo(json.dumps(summary.to_json(), indent=2))
    else:
        show_report(summary, _data())
    sys.exit(0 if summary.sound else EXIT_VIOLATION)


@harness.command()
@click.argument("folder", type=click.Path(path_type=Path))
def close(folder: Path) -> None:
    """Repair the history of a killed run: record operations that were in flight as `unknown`."""
    added = close_unfinished_run(folder)
    click.echo(f"{folder}: {added} operations recorded as unknown" if added else f"{folder}: nothing to do")


@harness.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("demo-run"), show_default=True)
@click.option("--seed", type=int, default=7, show_default=True)
@click.option(
    "--seconds", type=click.FloatRange(8, 600), default=10.0, show_default=True, help="How long the load lasts."
)
def demo(out: Path, seed: int, seconds: float) -> None:
    """Run 3 servers and 12 clients, kill the leader twice, and audit the history: first as recorded, then falsified."""
    run_demo(out, seed=seed, seconds=seconds, console=_data())


def _data() -> Console:
    return Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)


def _words() -> Console:
    return Console(stderr=True, width=None if sys.stderr.isatty() else _PIPE_WIDTH)


def _end(error: Exception, exit_code: int) -> NoReturn:
    click.echo(f"hwm-harness: {error}", err=True)
    sys.exit(exit_code)


def main() -> None:
    """Run the console script. A HarnessError is printed as a sentence, without a traceback."""
    end_with_true_exit_code(_run)


def _run() -> None:
    try:
        harness(prog_name="hwm-harness")
    except BadInput as error:
        _end(error, EXIT_BAD_INPUT)
    except Interrupted as error:
        _end(error, 128 + error.signal_number)
    except DemoFailed as error:
        _end(error, EXIT_VIOLATION)
    except HarnessError as error:
        _end(error, EXIT_FAILED)


if __name__ == "__main__":
    main()

"""`hwm bench`: what this cluster does under load, seen from here."""

from __future__ import annotations

import sys
from functools import partial

import click
import trio

from kvstore.cli.bench_load import Bench, BenchSpec
from kvstore.cli.common import Data, ExitCode, Failure, Number, client_options, print_json, print_table, run_operation
from kvstore.cli.output import say
from kvstore.errors import StoreError, Unavailable

REFRESH_SECONDS = 0.25
ROWS = {
    "ops/s": "ops_per_second", "operations": "operations", "seconds": "seconds", "p50 ms": "p50_ms", "p99 ms": "p99_ms",
    "p99.9 ms": "p99_9_ms", "max ms": "max_ms", "client CPU µs/op": "client_cpu_us_per_op",
}  # fmt: skip


@click.command()
@client_options
@click.option("--seconds", type=Number(0.1, 86_400), default=10.0, show_default=True, help="How long.")
@click.option(
    "--in-flight", type=click.IntRange(1, 8192), default=64, show_default=True, help="Operations open at a time."
)
@click.option(
    "--clients", type=click.IntRange(1, 256), default=4, show_default=True, help="Clients, with a connection each."
)
@click.option("--value-bytes", type=click.IntRange(0, 1 << 20), default=128, show_default=True)
@click.option("--keys", type=click.IntRange(1, 10_000_000), default=10_000, show_default=True, help="Different keys.")
@click.option(
    "--prefix", type=Data(), default="bench/", show_default=True, metavar="TEXT",
    help="Of all its keys. What is there under these names is overwritten, and deleted.",
)  # fmt: skip
@click.option("--reads", type=Number(0, 1), default=0.0, show_default=True, help="Which part is linearizable reads.")
@click.option(
    "--rate", type=Number(0, 10_000_000), default=0.0, metavar="N",
    help="Operations per second that are due (open loop; latency counts from then). 0: as many as go.",
)  # fmt: skip
@click.option("--keep", is_flag=True, help="Leave the keys there.")
def bench(
    endpoints: str,
    deadline_seconds: float,
    as_json: bool,
    seconds: float,
    in_flight: int,
    clients: int,
    value_bytes: int,
    keys: int,
    prefix: bytes,
    reads: float,
    rate: float,
    keep: bool,
) -> None:
    """Put and get under load for a while, and say how fast it was.

    This program takes part of the machine, too: where it runs beside a member, "client CPU" is what that member had
    not. One client process has one core; if "of a core" is near 100 %, it was the bottleneck, not the cluster.
    """
    spec = BenchSpec(
        endpoints=[part.strip() for part in endpoints.split(",") if part.strip()],
        deadline_seconds=deadline_seconds,
        seconds=seconds,
        in_flight=in_flight,
        clients=clients,
        value_bytes=value_bytes,
        keys=keys,
        prefix=prefix,
        reads=reads,
        rate=rate,
    )
    result = run_operation(partial(_run, spec, keep, as_json))
    if as_json:
        print_json(result.tally())
    else:
        _print(result)
    if result.last_error is not None:
        raise _failure(result, result.last_error)


async def _run(spec: BenchSpec, keep: bool, as_json: bool) -> Bench:
    """Measure, with a live display where there is a terminal; then clean up, also after a failure."""
    result = Bench(spec)
    async with trio.open_nursery() as nursery:
        if sys.stderr.isatty() and not as_json:
            nursery.start_soon(_show_forever, result)
        try:
            failure: StoreError | None = None
            try:
                await result.run()
            except StoreError as error:
                failure = error
            if result.has_written and not keep:
                try:
                    await result.clean_up()
                except StoreError as error:
                    say(f"keys may be left under {spec.prefix!r}: {error}")
        finally:
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return result


async def _show_forever(result: Bench) -> None:
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True, highlight=False), auto_refresh=False, transient=True) as live:
        while True:
            live.update(_line(result), refresh=True)
            await trio.sleep(REFRESH_SECONDS)


def _line(result: Bench) -> str:
    tally = result.tally()
    errors = sum(result.errors.values())
    return (
        f"{result.phase}  {tally['seconds']:5.1f} of {result.spec.seconds:g} s  "
        f"{tally['ops_per_second']:10,.0f} ops/s  p50 {tally['p50_ms']:.2f} ms  p99 {tally['p99_ms']:.2f} ms  "
        f"errors {errors}"
    )


def _print(result: Bench) -> None:
    tally = result.tally()
    rows: list[tuple[str, object]] = [(title, tally[name]) for title, name in ROWS.items()]
    rows.append(("of a core", f"{tally['client_cpu_share']:.0%}"))
    rows += [(f"error: {word}", count) for word, count in sorted(result.errors.items())]
    print_table(("of this run", "value"), rows)


def _failure(result: Bench, last_error: StoreError) -> Failure:
    """Some operations did not succeed: the worst that can be said of any of them."""
    failed = sum(result.errors.values())
    if "outcome_unknown" in result.errors:
        code = ExitCode.UNKNOWN
    else:
        code = ExitCode.UNAVAILABLE if isinstance(last_error, Unavailable) else ExitCode.FAILED
    return Failure(f"{failed} operations did not succeed; the last: {last_error}", code, last_error.hint)

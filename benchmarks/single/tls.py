"""`python -m benchmarks.single.tls`: measures puts with TLS on all connections, beside puts without.

Two clusters run as processes at the same time: one whose members and clients show certificates to each other (mutual
TLS 1.3 with EC keys), and one without. Windows of the two follow each other, in an order that changes. `lean` is the
generator of the other benchmarks, and `client` is the production client.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import trustme

from benchmarks.__main__ import RESULTS, data_folder
from benchmarks.load.plan import Contender, usual_puts
from benchmarks.load.spec import LoadSpec
from benchmarks.measure.machine import describe
from benchmarks.single.windows import measure_window, table_of_pairs, window_options
from benchmarks.systems.run import Running, running

WARMUP_SECONDS = 0.5
FILE = "tls.json"


@click.command()
@click.option("--members", type=click.IntRange(1, 9), default=3, show_default=True)
@click.option("--in-flight", multiple=True, type=click.IntRange(1, 4096), help="[default: 1, 64, 256, 1024]")
@click.option("--generator", "generators", multiple=True, type=click.Choice(["lean", "client"]), help="[default: both]")
@window_options(FILE)
def main(
    members: int,
    in_flight: tuple[int, ...],
    generators: tuple[str, ...],
    repetitions: int,
    seconds: float,
    folder: Path | None,
    out: Path | None,
) -> None:
    """Measure puts with TLS and without, and write all windows to a file.

    The exit code is 1 if a window has an error, or if a put was not carried out once.
    """
    began = datetime.now(UTC).replace(microsecond=0)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="hwm-bench-", dir=data_folder(folder)) as home:
        machine = describe(Path(home))
        for generator in generators or ("lean", "client"):
            place = Path(home) / generator
            place.mkdir()
            rows += _windows(generator, members, place, in_flight or (1, 64, 256, 1024), repetitions, seconds)
    click.echo(table_of_pairs(rows, "generator", "puts/s", ("TLS", "plain")))
    content = {"date": began.isoformat(), "seconds": seconds, "members": members, "machine": machine, "rows": rows}
    (out or RESULTS / FILE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if any(row["errors"] or row["carried_out"] != 1 for row in rows):
        raise SystemExit(1)


def _contenders(generator: str, members: int, folder: Path) -> dict[str, Contender]:
    """The two systems. All members share one certificate, which names all of them."""
    authority = trustme.CA()
    ca, cert = folder / "ca.pem", folder / "cert.pem"
    authority.cert_pem.write_to_path(ca)
    names = [f"n{number}" for number in range(1, members + 1)]
    authority.issue_cert("127.0.0.1", *names).private_key_and_cert_chain_pem.write_to_path(cert)
    options = [f"--{name}={cert}" for name in ("tls-cert", "peer-cert")]
    options += [f"--{name}={ca}" for name in ("client-ca", "peer-ca")]
    plain = Contender("plain", "highwatermark", generator)
    tls = replace(plain, name="TLS", options=tuple(options), tls_ca=str(ca), tls_cert=str(cert))
    return {"plain": plain, "TLS": tls}


def _windows(
    generator: str, members: int, folder: Path, in_flight: tuple[int, ...], repetitions: int, seconds: float
) -> list[dict[str, Any]]:
    """Start two clusters, and measure all windows on them."""
    spec = usual_puts(WARMUP_SECONDS, seconds)
    rows = []
    with ExitStack() as stack:
        clusters: dict[str, tuple[Running, LoadSpec]] = {}
        for name, contender in _contenders(generator, members, folder).items():
            place = folder / name
            place.mkdir()
            own = replace(spec, tls_ca=contender.tls_ca, tls_cert=contender.tls_cert)
            clusters[name] = stack.enter_context(running(contender, members, place)), own
            clusters[name][0].run(replace(own, fill=True))
        for repetition in range(repetitions):
            for count in in_flight:
                for name in ("plain", "TLS") if repetition % 2 == 0 else ("TLS", "plain"):
                    row = measure_window(*clusters[name], repetition, count)
                    rows.append({"generator": generator, "system": name, **row})
    return rows


if __name__ == "__main__":
    main()

"""``python -m experiments.defences --old CHECKOUT``: what the defences cost.

An earlier version, such as the one before the defences, and this one are measured in
turn, in pairs, with the libraries of this one: the ingest process under a flood and at
a fixed rate (delay of receipts), and requests to the console by a user who has logged
in (a page and the API), on the same tables. Printed are medians of the pairs' ratios,
this version to the earlier one. Other programs on the machine change delays more than
CPU time, so the ratio of that is printed beside them.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import click
import httpx

from demo.processes import free_port
from experiments.bench.console_tables import STEP_S, Size, write_tables
from experiments.bench.resource_usage import cpu_s
from experiments.bench.site import ROOT, interrupt_on_sigterm
from experiments.bench.table import table, write
from experiments.console import Console
from experiments.ingest import NODES, ingest

PASSWORD: Final = "correct horse battery"  # noqa: S105 - of an account of this run
PATHS: Final = ("/?lang=ja", "/api/session", "/api/gateways", "/api/cells")
MAX_RATIO: Final = 1.05
SIZE: Final = Size(2000, 4000)

Figures = dict[str, float]
"""Figures of one version by name; lower is better."""


def measure_ingest(checkout: Path, each: int, rate: float) -> Figures:
    """Measure the ingest process of a checkout.

    Args:
        checkout: Its folder.
        each: Messages of each node in the flood.
        rate: Messages/s at which delays are measured.
    """
    flood = ingest("flood", each, 0.0, checkout)
    paced = ingest("paced", max(1, round(rate * 10 / NODES)), rate, checkout)
    if any((flood.lost, flood.doubled, paced.lost, paced.doubled)):
        sys.exit(f"{checkout}: messages were lost or doubled")
    return {
        "ingest: s per message, flood": 1 / flood.per_s,
        "ingest: CPU per message, flood": flood.cpu_us,
        "ingest: CPU per message, fixed rate": paced.cpu_us,
        "ingest: p50 to the receipt": paced.p50_s or 0.0,
        "ingest: p99 to the receipt": paced.p99_s or 0.0,
    }


def measure_console(checkout: Path, tables: Path, count: int) -> Figures:
    """Measure requests to the console of a checkout.

    Args:
        checkout: Its folder.
        tables: Data folder with the tables.
        count: Requests of each path.
    """
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        accounts = folder / "accounts"
        add = [sys.executable, "-m", "backend_spark", "console-account", "add"]
        add += [str(accounts), "suzuki", "--role", "chief", "--password", PASSWORD]
        subprocess.run(add, check=True, capture_output=True, cwd=checkout)
        (folder / "data").mkdir()
        (folder / "data/tables").symlink_to(tables / "tables")
        (folder / "backend.toml").write_text(
            f'[backend]\ndata = "{folder}/data"\n[console]\nport = {port}\n'
            f'accounts = "{accounts}"\n'
        )
        console = Console(checkout, folder)
        try:
            console.wait()
            with httpx.Client(
                base_url=f"http://127.0.0.1:{port}", timeout=60
            ) as client:
                login = {"name": "suzuki", "password": PASSWORD}
                client.post("/api/login", json=login).raise_for_status()
                return dict(_requests(client, console.pid, count))
        finally:
            console.stop()


def _requests(
    client: httpx.Client, pid: int, count: int
) -> Iterable[tuple[str, float]]:
    for path in PATHS:
        client.get(path).raise_for_status()
        before_s, times_s = cpu_s(pid), []
        for _ in range(count):
            began_s = time.monotonic()
            client.get(path).raise_for_status()
            times_s.append(time.monotonic() - began_s)
        times_s.sort()
        yield f"console {path}: CPU", (cpu_s(pid) - before_s) / count
        yield f"console {path}: p50", times_s[count // 2]
        yield f"console {path}: p99", times_s[count * 99 // 100]


def _report(pairs: list[tuple[Figures, Figures]]) -> tuple[str, list[str]]:
    rows, dearer = [], []
    for name in pairs[0][0]:
        ratios = sorted(new[name] / old[name] for old, new in pairs if old[name])
        if not ratios:
            continue
        middle = statistics.median(ratios)
        before, now = (
            statistics.median(pair[n][name] for pair in pairs) for n in (0, 1)
        )
        unit = 1.0 if "CPU per" in name else 1e6
        rows.append([name, before * unit, now * unit, middle, ratios[0], ratios[-1]])
        if middle > MAX_RATIO:
            dearer.append(f"  {name}: {middle:.2f}")
    head = ("median, microseconds", "old", "this", "ratio", "least", "most")
    return table(head, rows), dearer


def _pairs(
    versions: tuple[Path, Path], rounds: int, load: tuple[int, float, int]
) -> Iterator[tuple[Figures, Figures]]:
    """Measure pairs; the load is messages of a node, messages/s and requests."""
    each, rate, count = load
    with tempfile.TemporaryDirectory(prefix="yamamori-defences-") as name:
        tables = Path(name)
        if count:
            write_tables(tables, SIZE, int(time.time() // STEP_S * STEP_S))
        for number in range(rounds):
            found: dict[Path, Figures] = {}
            # The first of a pair may find other caches: they take turns.
            for checkout in versions if number % 2 == 0 else versions[::-1]:
                figures = measure_ingest(checkout, each, rate) if each else {}
                figures |= measure_console(checkout, tables, count) if count else {}
                found[checkout] = figures
            yield found[versions[0]], found[versions[1]]
            print(f"  pair {number + 1} of {rounds}, load {os.getloadavg()[0]:.1f}")


@click.command()
@click.option(
    "--old",
    required=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Checkout of an earlier version, set up, so that its pages are built.",
)
@click.option("--rounds", default=5, show_default=True, help="Pairs of runs.")
@click.option(
    "--each", default=250, show_default=True, help="Messages of a node; 0: no ingest."
)
@click.option("--rate", default=1000.0, show_default=True, help="Messages/s.")
@click.option(
    "--requests",
    "count",
    default=300,
    show_default=True,
    help="Of a path; 0: no console.",
)
@click.option("--out", type=click.Path(path_type=Path), default="out/experiments")
def main(  # noqa: PLR0917 - options
    old: Path,
    rounds: int,
    each: int,
    rate: float,
    count: int,
    out: Path,
) -> None:
    """Compare ingest and console with an earlier version."""
    interrupt_on_sigterm()
    pairs = list(_pairs((old.resolve(), ROOT), rounds, (each, rate, count)))
    text, dearer = _report(pairs)
    result: dict[str, Any] = {"pairs": pairs}
    print(
        f"\n{text}\n\n  dearer than {MAX_RATIO:g}:", *(dearer or ["  none"]), sep="\n"
    )
    print(f"\n  {write(out, 'defences', result)}")


if __name__ == "__main__":
    main()

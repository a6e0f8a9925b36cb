"""``python -m experiments.ingest``: what one ingest process takes in.

Gateways -> a Mosquitto -> the ingest process: every message on disk (fsync) before
it is acknowledged, its receipt heard by its gateway. 200 nodes of five sensors. A
flood shows the rate; a pace shows how long a receipt takes. Beside it, in the same
run and on the same flood, a bare paho subscriber that does nothing. All share this
machine's cores; CPU is that of the one process.
"""

import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from backend_spark.ingest.segment_log import read_segments
from experiments.bench import chart
from experiments.bench.gateway import LOW_DELAY, NO_LIMITS
from experiments.bench.lan import cpu_s
from experiments.bench.site import Site, interrupt_on_sigterm
from experiments.bench.slope_load import NODES
from experiments.bench.table import table, verdict, write

LEAST_PER_S = 10_000.0
PACE_PER_S = 5000.0
MOST_RECEIPT_P99_S = 1.0
TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Run:
    """What one run showed; None where it does not apply.

    Attributes:
        arm: Who took the messages.
        per_s: From the first published to the last taken.
        cpu_us: CPU of the process for each message, microseconds.
        p50_s: Publication to receipt, as are p95_s and p99_s.
        lost: Not in the log.
        doubled: Twice in the log.
        segments: Files of the log.
    """

    arm: str
    per_s: float
    cpu_us: float
    p50_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None
    lost: int | None = None
    doubled: int | None = None
    segments: int | None = None


def bare(each: int) -> Run:
    """A flood to a subscriber that does nothing."""
    with Site(None) as site:
        port = _broker(site)
        site.python(
            "idle", None, "experiments.bench.idle_subscriber", "--port", port,
            "--filter", "/3/#", "--count", each * NODES, "--out", site.path("idle"),
        )  # fmt: skip
        site.wait_for_words("idle", "ready")
        _load(site, port, each, "--no-receipts")
        before_s = cpu_s(site.pid("idle"))
        (site.folder / "go").touch()
        used_s = _until_written(site, "idle", "idle") - before_s
        site.wait_for_words("load", "finished", TIMEOUT_S)
        span_s = site.result("idle")["last_s"] - site.result("load")["began_s"]
        count = each * NODES
        return Run("bare paho", count / span_s, used_s / count * 1e6)


def ingest(arm: str, each: int, rate: float) -> Run:
    """A flood, or a pace, to the ingest process."""
    with Site(None) as site:
        port = _broker(site)
        data = site.folder / "data"
        config = site.folder / "backend.toml"
        config.write_text(
            f'[backend]\ndata = "{data}"\n[ingest]\nbroker = "mqtt://127.0.0.1:{port}"\n'
        )
        site.python("ingest", None, "backend_spark", "ingest", "--config", config)
        site.wait_for_words("ingest", "is up")
        _load(site, port, each, "--rate", rate)
        before_s = cpu_s(site.pid("ingest"))
        (site.folder / "go").touch()
        used_s = _until_written(site, "load", "ingest") - before_s
        told = site.result("load")
        ids = [
            (node, seq)
            for _, rows in read_segments(data / "log", ("node", "seq"))
            for node, seq in zip(*rows.to_pydict().values(), strict=True)
        ]
        count, known = each * NODES, len(set(ids))
        return Run(
            arm, told["receipted"] / (told["last_s"] - told["began_s"]),
            used_s / count * 1e6, told["p50_s"], told["p95_s"], told["p99_s"],
            count - known, len(ids) - known, len(list((data / "log").glob("*.arrow"))),
        )  # fmt: skip


def _broker(site: Site[None]) -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = int(sock.getsockname()[1])
    site.mosquitto("broker", None, port, *NO_LIMITS, *LOW_DELAY)
    return port


def _load(site: Site[None], port: int, each: int, *more: object) -> None:
    site.python(
        "load", None, "experiments.bench.slope_load", "--port", port, "--each", each,
        "--go", site.folder / "go", "--out", site.path("load"), *more,
    )  # fmt: skip
    site.wait_for_words("load", "ready", TIMEOUT_S)


def _until_written(site: Site[None], name: str, measured: str) -> float:
    """CPU seconds that a program had used when a result was there."""
    until_s = time.monotonic() + TIMEOUT_S
    used_s = 0.0
    while True:
        # Who is measured may write and end between two looks.
        if not (measured == name and site.wait_for_end(name, 0.0)):
            used_s = cpu_s(site.pid(measured))
        if site.path(name).exists():
            return used_s
        if time.monotonic() > until_s:
            raise TimeoutError(f"no result of {name}:\n{site.last_words()}")
        time.sleep(0.05)


def _report(runs: list[Run]) -> tuple[str, list[str]]:
    head = ("arm", "messages/s", "CPU us each", "p50 ms", "p95 ms", "p99 ms",
            "lost", "doubled", "segments")  # fmt: skip
    rows: list[list[object]] = [
        [
            r.arm, r.per_s, r.cpu_us,
            *(None if s is None else s * 1e3 for s in (r.p50_s, r.p95_s, r.p99_s)),
            r.lost, r.doubled, r.segments,
        ]
        for r in runs
    ]  # fmt: skip
    by_arm = {run.arm: run for run in runs}
    flood, paced = by_arm["ingest, flood"], by_arm["ingest, paced"]
    wrong = sum((r.lost or 0) + (r.doubled or 0) for r in runs)
    return table(head, rows), [
        verdict("messages/s, on disk and receipted", flood.per_s, LEAST_PER_S, False),
        verdict("receipt p99 s at 5000/s", paced.p99_s, MOST_RECEIPT_P99_S),
        verdict("lost or doubled", wrong, 0),
        f"  ratio to bare paho: {flood.per_s / by_arm['bare paho'].per_s:.2f}",
    ]


@click.command()
@click.option("--quick", is_flag=True, help="Fewer messages.")
@click.option("--out", type=click.Path(path_type=Path), default="out/experiments")
def main(quick: bool, out: Path) -> None:
    """Measure what one ingest process takes in."""
    interrupt_on_sigterm()
    flood, seconds = (250, 5) if quick else (1500, 20)
    pace = round(PACE_PER_S * seconds / NODES)
    print("  bare paho, ingest flooded, ingest paced ...", flush=True)
    runs = [
        bare(flood),
        ingest("ingest, flood", flood, 0.0),
        ingest("ingest, paced", pace, PACE_PER_S),
    ]
    text, bars = _report(runs)
    told: dict[str, Any] = {"runs": [asdict(each) for each in runs], "bars": bars}
    print(f"\n{text}\n", *bars, f"\n  {write(out, 'ingest', told)}", sep="\n")
    chart.bars(
        out / "ingest.png", "What one process takes in", [run.arm for run in runs],
        {"messages/s": [run.per_s for run in runs]}, "messages/s",
    )  # fmt: skip


if __name__ == "__main__":
    main()

"""``python -m experiments.ingest``: capacity of one ingest process.

Gateways -> a Mosquitto -> the ingest process, which stores every message on disk
(fsync) before it acknowledges it and sends the receipt to the gateway. 200 nodes with
five sensors. A flood shows the throughput, a fixed rate the delay of receipts. For
comparison, in the same run and with the same flood, a plain paho subscriber without
processing. All programs share the machine's cores; CPU time is that of the measured
process.
"""

import socket
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from backend_spark.ingest.segment_log import read_segments
from experiments.bench import chart
from experiments.bench.gateway import LOW_DELAY, NO_LIMITS
from experiments.bench.gateway_load import NODES
from experiments.bench.lan import cpu_s
from experiments.bench.site import ROOT, Site, interrupt_on_sigterm
from experiments.bench.table import table, verdict, write

MIN_PER_S = 10_000.0
PACE_PER_S = 5000.0
MAX_RECEIPT_P99_S = 1.0
TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Run:
    """Result of one run; None where it does not apply.

    Attributes:
        arm: Receiving program, and the load.
        per_s: Messages/s from the first publication to the last reception.
        cpu_us: CPU time of the process per message, microseconds.
        p50_s: Publication to receipt, as are p95_s and p99_s.
        lost: Messages missing in the log.
        doubled: Duplicates in the log.
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
    """Send a flood to a subscriber without processing."""
    with Site(None) as site:
        port = _start_broker(site)
        site.python(
            "idle", None, "experiments.bench.idle_subscriber", "--port", port,
            "--filter", "/3/#", "--count", each * NODES, "--out", site.path("idle"),
        )  # fmt: skip
        site.wait_for_words("idle", "ready")
        _start_load(site, port, each, "--no-receipts")
        before_s = cpu_s(site.pid("idle"))
        (site.folder / "go").touch()
        used_s = _until_written(site, "idle", "idle") - before_s
        site.wait_for_words("load", "finished", TIMEOUT_S)
        span_s = site.result("idle")["last_s"] - site.result("load")["began_s"]
        count = each * NODES
        return Run("bare paho", count / span_s, used_s / count * 1e6)


def ingest(arm: str, each: int, rate: float, checkout: Path = ROOT) -> Run:
    """Send messages to the ingest process of a version.

    Args:
        arm: Name of the run.
        each: Messages of each node.
        rate: Messages/s; 0 for a flood.
        checkout: Folder of the version that is measured.
    """
    with Site(None) as site:
        port = _start_broker(site)
        data = site.folder / "data"
        config = site.folder / "backend.toml"
        config.write_text(
            f'[backend]\ndata = "{data}"\n[ingest]\nbroker = "mqtt://127.0.0.1:{port}"\n'
        )
        site.start(
            "ingest", None, "env", f"--chdir={checkout}", sys.executable,
            "-m", "backend_spark", "ingest", "--config", str(config),
        )  # fmt: skip
        site.wait_for_words("ingest", "is up")
        _start_load(site, port, each, "--rate", rate)
        before_s = cpu_s(site.pid("ingest"))
        (site.folder / "go").touch()
        used_s = _until_written(site, "load", "ingest") - before_s
        load = site.result("load")
        ids = [
            (node, seq)
            for _, rows in read_segments(data / "log", ("node", "seq"))
            for node, seq in zip(*rows.to_pydict().values(), strict=True)
        ]
        count, known = each * NODES, len(set(ids))
        return Run(
            arm, load["receipted"] / (load["last_s"] - load["began_s"]),
            used_s / count * 1e6, load["p50_s"], load["p95_s"], load["p99_s"],
            count - known, len(ids) - known, len(list((data / "log").glob("*.arrow"))),
        )  # fmt: skip


def _start_broker(site: Site[None]) -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = int(sock.getsockname()[1])
    site.mosquitto("broker", None, port, *NO_LIMITS, *LOW_DELAY)
    return port


def _start_load(site: Site[None], port: int, each: int, *more: object) -> None:
    site.python(
        "load", None, "experiments.bench.gateway_load", "--port", port, "--each", each,
        "--go", site.folder / "go", "--out", site.path("load"), *more,
    )  # fmt: skip
    site.wait_for_words("load", "ready", TIMEOUT_S)


def _until_written(site: Site[None], name: str, measured: str) -> float:
    """Wait for a result; return the CPU seconds of the measured program by then."""
    deadline_s = time.monotonic() + TIMEOUT_S
    used_s = 0.0
    while True:
        # The measured program may write its result and end between two polls.
        if not (measured == name and site.wait_for_end(name, 0.0)):
            used_s = cpu_s(site.pid(measured))
        if site.path(name).exists():
            return used_s
        if time.monotonic() > deadline_s:
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
        verdict("messages/s, on disk and receipted", flood.per_s, MIN_PER_S, False),
        verdict("receipt p99 s at 5000/s", paced.p99_s, MAX_RECEIPT_P99_S),
        verdict("lost or doubled", wrong, 0),
        f"  ratio to bare paho: {flood.per_s / by_arm['bare paho'].per_s:.2f}",
    ]


@click.command()
@click.option("--quick", is_flag=True, help="Fewer messages.")
@click.option("--out", type=click.Path(path_type=Path), default="out/experiments")
def main(quick: bool, out: Path) -> None:
    """Measure the capacity of one ingest process."""
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
    result: dict[str, Any] = {"runs": [asdict(each) for each in runs], "bars": bars}
    print(f"\n{text}\n", *bars, f"\n  {write(out, 'ingest', result)}", sep="\n")
    chart.bars(
        out / "ingest.png", "What one process takes in", [run.arm for run in runs],
        {"messages/s": [run.per_s for run in runs]}, "messages/s",
    )  # fmt: skip


if __name__ == "__main__":
    main()

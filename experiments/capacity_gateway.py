"""``python -m experiments.capacity_gateway``: capacity of one gateway.

500 nodes, each with its own connection, send a storm (one message per minute each) to a
real Mosquitto; the real daemon stores it on disk, sends receipts, and forwards it to a
distributed broker, where the real ingest process stores it and sends receipts.

An hour of storm is 30,000 messages. They are sent in one minute, 60 times as fast.
Whatever depends on messages (disk, receipts, memory for known ids) is that of an hour;
whatever depends on time (keepalives, heartbeats) is that of a minute. Then the rate is
raised step by step until a target is missed. CPU time is that of each process with its
children; wall times depend on other programs on the machine.
"""

import time
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import click
import pyarrow as pa

from backend_spark.ingest.segment_log import read_segments
from demo.processes import free_port
from experiments.bench.chart import lines
from experiments.bench.gateway import LOW_DELAY, NO_LIMITS, start_daemon
from experiments.bench.resource_usage import Sampler
from experiments.bench.site import Site, interrupt_on_sigterm
from experiments.bench.table import table, verdict, write

NODES: Final = 500
STORM_PER_S: Final = NODES / 60
SPEEDUP: Final = 60
"""An hour is simulated in a minute."""

RATES: Final = (1000.0, 1500.0, 2000.0, 3000.0, 4000.0, 6000.0)
MAX_CUSTODY_P99_S: Final = 3.0
"""The gateway batches routine receipts for one second."""

MAX_URGENT_P99_S: Final = 1.0
MAX_BEHIND_S: Final = 1.0
MAX_GROWTH_MIB: Final = 16.0
TIMEOUT_S: Final = 600.0
QUIET_S: Final = 20.0
PROGRAMS: Final = ("broker", "gateway", "remote", "ingest", "load")


@dataclass(frozen=True)
class Step:
    """Result of one rate; times in seconds.

    Attributes:
        arm: Name of the step.
        rate: Nominal rate, messages/s.
        sent: Number of messages.
        lost: Messages missing in the backend's log at the end.
        behind_s: Maximum lag of the nodes behind their rate.
        drained_s: From the last message sent to the last one in the backend's log.
        custody_p50_s: Publication to the gateway's receipt, median.
        custody_p99_s: Publication to the gateway's receipt, 99th percentile.
        urgent_p99_s: Priority 5, publication to the distributed broker.
        cpu_us: CPU time per message of each program.
        mib: Maximum memory of each program.
        growth_mib: Memory growth of each, from the step's second quarter to its last.
        queued: Maximum number of messages in the gateway's queues.
    """

    arm: str
    rate: float
    sent: int
    lost: int
    behind_s: float
    drained_s: float
    custody_p50_s: float | None
    custody_p99_s: float | None
    urgent_p99_s: float | None
    cpu_us: Mapping[str, float]
    mib: Mapping[str, float]
    growth_mib: Mapping[str, float]
    queued: float

    def broken(self) -> list[str]:
        """Return the missed targets, the most serious first."""
        checks = {
            "lost": self.lost > 0,
            "urgent p99": (self.urgent_p99_s or 0.0) > MAX_URGENT_P99_S,
            "custody p99": (self.custody_p99_s or 0.0) > MAX_CUSTODY_P99_S,
            "nodes held back": self.behind_s > MAX_BEHIND_S,
        }
        return [name for name, is_broken in checks.items() if is_broken]

    def busiest(self) -> str:
        """Return the program with the highest CPU use, and its cores."""
        name = max(PROGRAMS[:-1], key=lambda name: self.cpu_us[name])
        return f"{name} {self.cpu_us[name] * self.rate / 1e6:.2f}"


def run(
    rate: float,
    seconds: float,
    arm: str = "",
    limits: tuple[str, ...] = (*NO_LIMITS, *LOW_DELAY),
) -> Step:
    """Run one rate on a new system; ``limits`` are options of both brokers."""
    with Site(None) as site:
        own, remote, metrics = free_port(), free_port(), free_port()
        site.mosquitto("broker", None, own, *limits)
        site.mosquitto("remote", None, remote, *limits)
        data = _start_ingest(site, remote)
        listen = f'\n[metrics]\nlisten = "127.0.0.1:{metrics}"'
        start_daemon(site, None, own, ("127.0.0.1", remote), listen)
        site.wait_for_words("gateway", "gives receipts: custody", TIMEOUT_S)
        _start_load(site, own, remote, rate, seconds)
        pids = {name: site.pid(name) for name in PROGRAMS}
        with Sampler(pids, lambda: queued(metrics)) as sampler:
            (site.folder / "go.1").touch()
            site.wait_for_words("load", "step 1 ended", TIMEOUT_S)
            (load_step,) = site.result("load")
            logged = _wait_until_logged(data, load_step["sent"])
        return _step(arm or f"{rate:.0f}/s", load_step, logged, sampler)


def _start_ingest(site: Site[None], port: int) -> Path:
    data = site.folder / "data"
    config = site.folder / "backend.toml"
    config.write_text(
        f'[backend]\ndata = "{data}"\n[ingest]\nbroker = "mqtt://127.0.0.1:{port}"\n'
    )
    site.python("ingest", None, "backend_spark", "ingest", "--config", config)
    site.wait_for_words("ingest", "is up", TIMEOUT_S)
    return data


def _start_load(
    site: Site[None], own: int, remote: int, rate: float, seconds: float
) -> None:
    site.python(
        "load", None, "experiments.bench.storm_load",
        "--port", own, "--urgent-port", remote,
        "--nodes", NODES, "--links", NODES, "--rates", rate, "--seconds", seconds,
        "--go", site.folder / "go", "--out", site.path("load"),
    )  # fmt: skip
    site.wait_for_words("load", "ready", TIMEOUT_S)


def queued(port: int) -> dict[str, float]:
    """Return the number of messages in the gateway's queues, from its metrics."""
    url = f"http://127.0.0.1:{port}/metrics"
    with urllib.request.urlopen(url, timeout=60) as response:
        rows = [line.split() for line in response.read().decode().splitlines()]
    waiting = [
        float(row[1]) for row in rows if row[0].startswith("yamamori_queue_messages{")
    ]
    return {"queued": sum(waiting)}


def _wait_until_logged(data: Path, sent: int) -> tuple[int, float]:
    """Return the distinct messages in the backend's log at the end, and the time."""
    known, changed_s = 0, time.monotonic()
    while known < sent and time.monotonic() < changed_s + QUIET_S:
        time.sleep(0.5)
        before, known = known, len(set(ids(data)))
        if known > before:
            changed_s = time.monotonic()
    return known, changed_s


def ids(data: Path) -> list[tuple[str, int]]:
    """Return the id of every message in the backend's log."""
    parts = [rows for _, rows in read_segments(data / "log", ("node", "seq"))]
    log = pa.concat_tables(parts) if parts else None
    if log is None:
        return []
    return list(zip(log["node"].to_pylist(), log["seq"].to_pylist(), strict=True))


def _step(
    arm: str, load: dict[str, Any], logged: tuple[int, float], sampler: Sampler
) -> Step:
    known, ended_s = logged
    began_s = load["began_s"]
    sent, custody = load["sent"], load["custody"]
    return Step(
        arm, load["rate"], sent, sent - known, load["behind_s"],
        max(0.0, ended_s - load["sent_s"]), custody["p50_s"], custody["p99_s"],
        load["urgent"]["5"]["p99_s"],
        {
            name: sampler.used_s(name, began_s, ended_s) / sent * 1e6
            for name in PROGRAMS
        },
        {name: sampler.max_mib(name) for name in PROGRAMS},
        {name: sampler.growth_mib(name, began_s, ended_s) for name in PROGRAMS},
        max(sample.more["queued"] for sample in sampler.samples),
    )  # fmt: skip


def _rows(steps: list[Step]) -> str:
    head = (
        "step", "sent", "lost", "behind s", "drained s", "custody p50 s", "p99 s",
        "urgent p99 s", "queued", *(f"{name} us" for name in PROGRAMS),
        "gateway MiB", "+MiB", "busiest", "broken",
    )  # fmt: skip
    rows = [
        [
            s.arm, s.sent, s.lost, s.behind_s, s.drained_s, s.custody_p50_s,
            s.custody_p99_s, s.urgent_p99_s, f"{s.queued:.0f}",
            *(f"{s.cpu_us[name]:.0f}" for name in PROGRAMS),
            f"{s.mib['gateway']:.0f}", s.growth_mib["gateway"], s.busiest(),
            ", ".join(s.broken()) or "-",
        ]
        for s in steps
    ]  # fmt: skip
    return table(head, rows)


def _verdicts(hour: Step, steps: list[Step]) -> list[str]:
    growth = max(hour.growth_mib[name] for name in PROGRAMS[:-1])
    broken = next((s for s in steps if s.broken()), None)
    conclusion = (
        f"  first to break: {', '.join(broken.broken())} at {broken.rate:.0f} "
        f"messages/s; busiest: {broken.busiest()} cores"
        if broken
        else f"  nothing broke up to {steps[-1].rate:.0f} messages/s"
    )
    each_us = hour.cpu_us["gateway"]
    return [
        verdict("the hour: lost", hour.lost, 0),
        verdict("the hour: custody p99 s", hour.custody_p99_s, MAX_CUSTODY_P99_S),
        verdict("the hour: urgent p99 s", hour.urgent_p99_s, MAX_URGENT_P99_S),
        verdict("the hour: growth of any process, MiB", growth, MAX_GROWTH_MIB),
        conclusion,
        f"  by CPU, one core of the daemon carries {1e6 / each_us:.0f} messages/s",
    ]


@click.command()
@click.option("--quick", is_flag=True, help="A twentieth of the hour, two rates.")
@click.option("--out", type=click.Path(path_type=Path), default="out/experiments")
def main(quick: bool, out: Path) -> None:
    """Measure the capacity of one gateway, and its first bottleneck."""
    interrupt_on_sigterm()
    seconds, part = (3.0, 0.05) if quick else (20.0, 1.0)
    print("  an hour of storm ...", flush=True)
    hour = run(STORM_PER_S * SPEEDUP, 3600.0 / SPEEDUP * part, "an hour")
    print("  the same, Mosquitto as it comes ...", flush=True)
    bare = run(STORM_PER_S * SPEEDUP, seconds, "limits as they come", ())
    steps = [hour]
    for rate in RATES[:1] if quick else RATES:
        print(f"  {rate:.0f} messages/s ...", flush=True)
        steps.append(run(rate, seconds))
        if steps[-1].broken():
            break
    bars, every = _verdicts(hour, steps), [hour, bare, *steps[1:]]
    result: dict[str, Any] = {
        "nodes": NODES, "steps": [asdict(step) for step in every], "bars": bars,
    }  # fmt: skip
    print(f"\n{_rows(every)}\n", *bars, sep="\n")
    print(f"\n  {write(out, 'capacity_gateway', result)}")
    lines(
        out / "capacity_gateway.png", "What one gateway carries",
        [step.rate for step in steps],
        {
            "custody p99": [step.custody_p99_s for step in steps],
            "urgent p99": [step.urgent_p99_s for step in steps],
        },
        "messages/s", "s",
    )  # fmt: skip


if __name__ == "__main__":
    main()

"""``python -m experiments.capacity_gateway``: what one gateway carries.

500 nodes, each a connection of its own, send a storm (one message a minute each) to
a real Mosquitto; the real daemon takes it on disk, gives receipts, and brings it to
a distributed broker, where the real ingest process writes it down and receipts it.

An hour of storm is 30,000 messages. They are sent in one minute: every message of
the hour, 60 times as fast. What goes by messages (disk, receipts, memory of what is
known) is that of an hour; what goes by the clock (keepalives, beats) is that of a
minute. Then the rate is raised step by step until a bar breaks. CPU is that of each
process with its children; wall times are those of a machine that others may share.
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
from experiments.bench.sampler import Sampler
from experiments.bench.site import Site, interrupt_on_sigterm
from experiments.bench.table import table, verdict, write

NODES: Final = 500
STORM_PER_S: Final = NODES / 60
FASTER: Final = 60
"""An hour passes in a minute."""

RATES: Final = (1000.0, 1500.0, 2000.0, 3000.0, 4000.0, 6000.0)
MOST_CUSTODY_P99_S: Final = 3.0
"""The gateway gathers routine receipts for one second."""

MOST_URGENT_P99_S: Final = 1.0
MOST_BEHIND_S: Final = 1.0
MOST_GROWTH_MIB: Final = 16.0
TIMEOUT_S: Final = 600.0
QUIET_S: Final = 20.0
PROGRAMS: Final = ("broker", "gateway", "remote", "ingest", "load")


@dataclass(frozen=True)
class Step:
    """What one rate showed; times in seconds.

    Attributes:
        arm: Name of the step.
        rate: Asked for, messages/s.
        sent: Messages.
        lost: Not in the backend's log in the end.
        behind_s: How far the nodes fell behind their rate.
        drained_s: From the last message sent to the last one in the backend's log.
        custody_p50_s: Publication to the gateway's receipt.
        custody_p99_s: The same.
        urgent_p99_s: Priority 5, publication to the other side.
        cpu_us: Of each program, for each message.
        mib: Memory of each at its most.
        growth_mib: Of each, from the step's second quarter to its last.
        queued: Messages that waited in the gateway at its fullest.
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
        """What does not hold, the gravest first."""
        told = {
            "lost": self.lost > 0,
            "urgent p99": (self.urgent_p99_s or 0.0) > MOST_URGENT_P99_S,
            "custody p99": (self.custody_p99_s or 0.0) > MOST_CUSTODY_P99_S,
            "nodes held back": self.behind_s > MOST_BEHIND_S,
        }
        return [name for name, is_broken in told.items() if is_broken]

    def busiest(self) -> str:
        """The program that takes most of one core, and how much of it."""
        name = max(PROGRAMS[:-1], key=lambda name: self.cpu_us[name])
        return f"{name} {self.cpu_us[name] * self.rate / 1e6:.2f}"


def run(
    rate: float,
    seconds: float,
    arm: str = "",
    limits: tuple[str, ...] = (*NO_LIMITS, *LOW_DELAY),
) -> Step:
    """One rate on a fresh system, whose brokers have some lines of configuration."""
    with Site(None) as site:
        own, remote, metrics = free_port(), free_port(), free_port()
        site.mosquitto("broker", None, own, *limits)
        site.mosquitto("remote", None, remote, *limits)
        data = _start_ingest(site, remote)
        listens = f'\n[metrics]\nlisten = "127.0.0.1:{metrics}"'
        start_daemon(site, None, own, ("127.0.0.1", remote), listens)
        site.wait_for_words("gateway", "gives receipts: custody", TIMEOUT_S)
        _start_load(site, own, remote, rate, seconds)
        pids = {name: site.pid(name) for name in PROGRAMS}
        with Sampler(pids, lambda: queued(metrics)) as sampler:
            (site.folder / "go.1").touch()
            site.wait_for_words("load", "step 1 ended", TIMEOUT_S)
            (told,) = site.result("load")
            there = _wait_until_logged(data, told["sent"])
        return _step(arm or f"{rate:.0f}/s", told, there, sampler)


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
        "load", None, "experiments.bench.storm_load", "--port", own, "--ear", remote,
        "--nodes", NODES, "--links", NODES, "--rates", rate, "--seconds", seconds,
        "--go", site.folder / "go", "--out", site.path("load"),
    )  # fmt: skip
    site.wait_for_words("load", "ready", TIMEOUT_S)


def queued(port: int) -> dict[str, float]:
    """Messages that wait in the gateway's queues, by its own metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as told:
        rows = [line.split() for line in told.read().decode().splitlines()]
    waiting = [
        float(row[1]) for row in rows if row[0].startswith("yamamori_queue_messages{")
    ]
    return {"queued": sum(waiting)}


def _wait_until_logged(data: Path, sent: int) -> tuple[int, float]:
    """Distinct messages in the log of the backend in the end, and since when."""
    known, changed_s = 0, time.monotonic()
    while known < sent and time.monotonic() < changed_s + QUIET_S:
        time.sleep(0.5)
        before, known = known, len(set(ids(data)))
        if known > before:
            changed_s = time.monotonic()
    return known, changed_s


def ids(data: Path) -> list[tuple[str, int]]:
    """The id of every message in the backend's log."""
    parts = [rows for _, rows in read_segments(data / "log", ("node", "seq"))]
    told = pa.concat_tables(parts) if parts else None
    if told is None:
        return []
    return list(zip(told["node"].to_pylist(), told["seq"].to_pylist(), strict=True))


def _step(
    arm: str, told: dict[str, Any], there: tuple[int, float], sampler: Sampler
) -> Step:
    known, ended_s = there
    began_s = told["began_s"]
    sent, custody = told["sent"], told["custody"]
    return Step(
        arm, told["rate"], sent, sent - known, told["behind_s"],
        max(0.0, ended_s - told["sent_s"]), custody["p50_s"], custody["p99_s"],
        told["urgent"]["5"]["p99_s"],
        {
            name: sampler.used_s(name, began_s, ended_s) / sent * 1e6
            for name in PROGRAMS
        },
        {name: sampler.most_mib(name) for name in PROGRAMS},
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
    what = (
        f"  first to break: {', '.join(broken.broken())} at {broken.rate:.0f} "
        f"messages/s; busiest: {broken.busiest()} cores"
        if broken
        else f"  nothing broke up to {steps[-1].rate:.0f} messages/s"
    )
    each_us = hour.cpu_us["gateway"]
    return [
        verdict("the hour: lost", hour.lost, 0),
        verdict("the hour: custody p99 s", hour.custody_p99_s, MOST_CUSTODY_P99_S),
        verdict("the hour: urgent p99 s", hour.urgent_p99_s, MOST_URGENT_P99_S),
        verdict("the hour: growth of any process, MiB", growth, MOST_GROWTH_MIB),
        what,
        f"  by CPU, one core of the daemon carries {1e6 / each_us:.0f} messages/s",
    ]


@click.command()
@click.option("--quick", is_flag=True, help="A twentieth of the hour, two rates.")
@click.option("--out", type=click.Path(path_type=Path), default="out/experiments")
def main(quick: bool, out: Path) -> None:
    """Measure what one gateway carries, and what breaks first."""
    interrupt_on_sigterm()
    seconds, part = (3.0, 0.05) if quick else (20.0, 1.0)
    print("  an hour of storm ...", flush=True)
    hour = run(STORM_PER_S * FASTER, 3600.0 / FASTER * part, "an hour")
    print("  the same, Mosquitto as it comes ...", flush=True)
    bare = run(STORM_PER_S * FASTER, seconds, "limits as they come", ())
    steps = [hour]
    for rate in RATES[:1] if quick else RATES:
        print(f"  {rate:.0f} messages/s ...", flush=True)
        steps.append(run(rate, seconds))
        if steps[-1].broken():
            break
    bars, every = _verdicts(hour, steps), [hour, bare, *steps[1:]]
    told: dict[str, Any] = {
        "nodes": NODES, "steps": [asdict(step) for step in every], "bars": bars,
    }  # fmt: skip
    print(f"\n{_rows(every)}\n", *bars, sep="\n")
    print(f"\n  {write(out, 'capacity_gateway', told)}")
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

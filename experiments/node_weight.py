"""``python -m experiments.node_weight``: what the agent takes from a Raspberry Pi.

The real ``edge-agent run`` with ten sensors, each read once a minute, sees only the
libraries of ``yamamori[edge]``. It keeps its queue on a card of its own: ext4 on a
loop device, mounted as Raspberry Pi OS does, so that what the file system adds is
counted. Three nodes at once:

* quiet: no rain, a gateway takes everything;
* alone: no rain, and no gateway: the queue grows;
* alarm: in a storm the wire is cut, so that each message is urgent and is flushed at
  once, and a gateway takes them. It has no bar for bytes: alarms last for hours.

Measured between two moments after the start: memory and processor time from
/proc/PID, sectors written from /sys/block. The sensors are the product's drivers on
simulated chips, which are quicker than real ones and wait for nothing; what the
simulated slope itself takes is a thread of its own and is told apart. Not in here:
lgpio's own thread where gpiozero watches a pin, and the journal's files. Root only.
"""

import contextlib
import os
import socket
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from edge_agent.queue.inspection import read_counters
from experiments.bench.chart import bars
from experiments.bench.edge_libraries import link_edge_libraries
from experiments.bench.gateway import NO_LIMITS, start_daemon
from experiments.bench.scales import Card, Reading, card, weigh
from experiments.bench.site import ROOT, Site, interrupt_on_sigterm
from experiments.bench.table import table, verdict, write

MB = 1e6
DAY_S = 86_400.0
CARD_BYTES = 600_000_000
MINUTES, QUICK_MINUTES = 60.0, 3.0
WARM_S = 75.0
"""Beyond the first samplings, so that nothing that is done once is counted."""

RSS_BAR_MB, CPU_BAR_PERCENT, WRITTEN_BAR_MB = 60.0, 2.0, 50.0
INTERVAL_S = 60
SLOPE = "slope"
"""Thread that moves the simulated slope."""

SENSORS = """
kind = "rain-gauge"
pin = 17
---
kind = "wire"
pin = 27
---
kind = "vibration"
pin = 22
---
kind = "soil-moisture"
channel = 0
dry_v = 2.6
wet_v = 1.2
---
kind = "soil-moisture"
channel = 3
dry_v = 2.6
wet_v = 1.2
---
kind = "extensometer"
channel = 1
travel_mm = 500
home_v = 0.2
full_v = 3.0
---
kind = "piezometer"
channel = 2
at_4ma_kpa = -20
at_20ma_kpa = 80
---
kind = "tilt"
device = 1
---
kind = "bme280"
---
kind = "ds18b20"
rom = "28-0123456789ab"
"""


@dataclass(frozen=True)
class Arm:
    """One node.

    Attributes:
        name: In tables.
        weather: Its lines of ``[simulation]``.
        has_gateway: Whether anybody takes its messages.
        has_written_bar: Whether the bar for bytes is for it.
    """

    name: str
    weather: str
    has_gateway: bool = True
    has_written_bar: bool = True


DRY = 'storm = "quiet"\n'
ALARM = 'storm = "peaked"\ntotal_mm = 400\nwire_break_after_h = 0.01\n'
ARMS = (
    Arm("quiet", DRY),
    Arm("alone", DRY, has_gateway=False),
    Arm("alarm", ALARM, has_written_bar=False),
)


@dataclass(frozen=True)
class Look:
    """A node at one moment.

    Attributes:
        at_s: Monotonic time.
        process: What the kernel says of it.
        card_bytes: Written on its card so far.
        put: Messages ever queued, by priority.
        acked: Messages ever delivered.
    """

    at_s: float
    process: Reading
    card_bytes: int
    put: dict[str, int]
    acked: int


@dataclass(frozen=True)
class Weight:
    """What one node took between two looks.

    Attributes:
        arm: Which.
        minutes: Between the looks.
        put: Messages queued meanwhile, by priority.
        acked: Messages delivered meanwhile.
        rss_mb: Most memory since its start.
        cpu_percent: Of one core, the simulated slope not included.
        slope_percent: What that one took.
        card_mb_day: Written on the card in a day at this pace.
        process_mb_day: The same by the process's own count: without the journal.
        threads_s: Processor seconds by thread.
    """

    arm: str
    minutes: float
    put: dict[str, int]
    acked: int
    rss_mb: float
    cpu_percent: float
    slope_percent: float
    card_mb_day: float
    process_mb_day: float
    threads_s: dict[str, float]

    def row(self) -> list[object]:
        """A line of the table."""
        put = " ".join(f"{p}:{n}" for p, n in self.put.items() if n)
        return [self.arm, self.minutes, put, self.acked, self.rss_mb, self.cpu_percent,
                self.slope_percent, self.card_mb_day, self.process_mb_day]  # fmt: skip

    def verdicts(self, arm: Arm) -> list[str]:
        """The bars."""
        bar = WRITTEN_BAR_MB
        written = [
            verdict(f"{arm.name}: MB/day by its own count", self.process_mb_day, bar),
            verdict(f"{arm.name}: MB/day on the card", self.card_mb_day, bar),
        ]
        return [
            verdict(f"{arm.name}: memory, MB", self.rss_mb, RSS_BAR_MB),
            verdict(f"{arm.name}: % of a core", self.cpu_percent, CPU_BAR_PERCENT),
            *(written if arm.has_written_bar else []),
        ]


def start(site: Site[None], arm: Arm, on: Card, port: int) -> None:
    """Start a node with its queue on a card."""
    config = site.folder / f"{arm.name}.toml"
    config.write_text(_settings(arm, on.folder / "queue.db", port))
    site.start(arm.name, None, *_agent(site), "run", "--config", str(config))


def _agent(site: Site[None]) -> tuple[str, ...]:
    path = f"{site.folder / 'libraries'}:{ROOT}"
    # -S: no site-packages, or the whole environment of the developer is there.
    return ("env", f"PYTHONPATH={path}", sys.executable, "-S", "-m", "edge_agent")


def look(site: Site[None], arm: Arm, on: Card) -> Look:
    """What a node has taken so far."""
    tally = read_counters(on.folder / "queue.db")
    return Look(
        time.monotonic(),
        weigh(site.pid(arm.name)),
        on.written_bytes(),
        {str(p): row["put"] for p, row in tally.items()},
        sum(row["acked"] for row in tally.values()),
    )


def weight(arm: Arm, first: Look, last: Look) -> Weight:
    """What it took between two looks, a day of that, and parts of a core."""
    passed_s = last.at_s - first.at_s
    before, after = first.process.cpu_s, last.process.cpu_s
    threads = {name: spent - before.get(name, 0.0) for name, spent in after.items()}
    slope_s = threads.get(SLOPE, 0.0)
    per_day = DAY_S / passed_s / MB
    written = last.process.write_bytes - first.process.write_bytes
    return Weight(
        arm.name,
        passed_s / 60,
        {p: count - first.put[p] for p, count in last.put.items()},
        last.acked - first.acked,
        last.process.peak_bytes / MB,
        (sum(threads.values()) - slope_s) / passed_s * 100,
        slope_s / passed_s * 100,
        (last.card_bytes - first.card_bytes) * per_day,
        written * per_day,
        {name: round(s, 2) for name, s in threads.items() if s},
    )


def measure(minutes: float) -> list[Weight]:
    """Let all nodes run side by side."""
    with Site(None) as site, contextlib.ExitStack() as cards:
        libraries = link_edge_libraries(site.folder / "libraries")
        print(f"  with {', '.join(libraries)}", flush=True)
        port, remote_port, nobody = _free_ports(3)
        site.mosquitto("broker", None, port, *NO_LIMITS)
        site.mosquitto("remote", None, remote_port, *NO_LIMITS)
        start_daemon(site, None, port, ("127.0.0.1", remote_port))
        on = {
            arm: cards.enter_context(card(site.folder / f"{arm.name}.img", CARD_BYTES))
            for arm in ARMS
        }
        for arm in ARMS:
            start(site, arm, on[arm], port if arm.has_gateway else nobody)
        time.sleep(WARM_S)
        first = {arm: look(site, arm, on[arm]) for arm in ARMS}
        time.sleep(minutes * 60)
        weights = [weight(arm, first[arm], look(site, arm, on[arm])) for arm in ARMS]
        for arm in ARMS:
            site.stop(arm.name)
    return weights


def _settings(arm: Arm, queue: Path, port: int) -> str:
    sensors = [
        f'[[sensor]]\nname = "s{number}"\ninterval_s = {INTERVAL_S}\n{table.strip()}\n'
        for number, table in enumerate(SENSORS.split("---"))
    ]
    return (
        f'[node]\nid = "{arm.name}"\nlatitude = 33.5588\nlongitude = 133.5312\n'
        f'[uplink]\ngateway = "mqtt://127.0.0.1:{port}"\n'
        f'[queue]\npath = "{queue}"\n'
        '[simulation]\nstart = "2026-07-01T00:00:00+09:00"\nspeedup = 1.0\n'
        f"{arm.weather}{''.join(sensors)}"
    )


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def _draw(path: Path, weights: list[Weight]) -> None:
    parts = {
        "memory": [w.rss_mb / RSS_BAR_MB * 100 for w in weights],
        "processor": [w.cpu_percent / CPU_BAR_PERCENT * 100 for w in weights],
        "written a day": [w.card_mb_day / WRITTEN_BAR_MB * 100 for w in weights],
    }
    title = "What a node takes, of what it may"
    bars(path, title, [w.arm for w in weights], parts, "% of the bar")


@click.command()
@click.option("--quick", is_flag=True, help="Three minutes instead of an hour.")
@click.option("--minutes", type=float, help="How long, instead.")
@click.option("--out", type=click.Path(path_type=Path), default="out/experiments")
def main(quick: bool, minutes: float | None, out: Path) -> None:
    """Weigh the agent."""
    if os.geteuid() != 0:
        raise SystemExit("node_weight needs root: it mounts a card of its own")
    interrupt_on_sigterm()
    weights = measure(minutes or (QUICK_MINUTES if quick else MINUTES))
    head = ("node", "minutes", "messages by priority", "delivered", "peak MB",
            "% of a core", "slope %", "card MB/day", "process MB/day")  # fmt: skip
    text = table(head, [each.row() for each in weights])
    verdicts = [
        line
        for arm, each in zip(ARMS, weights, strict=True)
        for line in each.verdicts(arm)
    ]
    told = {"weights": [asdict(each) for each in weights], "bars": verdicts}
    path = write(out, "node_weight", told)
    _draw(path.with_suffix(".png"), weights)
    print(f"\n{text}\n", *verdicts, f"\n  {path}", sep="\n")


if __name__ == "__main__":
    main()

"""``python -m experiments.node_weight``: resource usage of the agent on a Raspberry Pi.

The real ``edge-agent run`` with ten sensors, each read once a minute, has access only
to the libraries of ``yamamori[edge]``. Its queue is on its own card: ext4 on a loop
device, mounted as on Raspberry Pi OS, so that writes of the file system are counted.
Three nodes at once:

* quiet: no rain, a gateway accepts all messages;
* alone: no rain, and no gateway: the queue grows;
* alarm: in a storm the trip wire breaks, so that each message is urgent and is flushed
  at once, and a gateway accepts them. It has no target for bytes, since alarms last
  only for hours.

Measured between two times after the start: memory and CPU time from /proc/PID, sectors
written from /sys/block. The sensors are the product's drivers on simulated chips, which
are faster than real ones; the simulated slope runs in a separate thread, whose CPU time
is reported separately. Not included: lgpio's own thread where gpiozero watches a pin,
and the files of the journal. Root only.
"""

import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import click
from packaging.requirements import Requirement

from edge_agent.queue.file_lifecycle import read_counters
from experiments.bench.chart import bars
from experiments.bench.gateway import NO_LIMITS, start_daemon
from experiments.bench.resource_usage import (
    Card,
    ProcessUsage,
    mount_card,
    read_usage,
)
from experiments.bench.site import ROOT, Site, interrupt_on_sigterm
from experiments.bench.table import table, verdict, write

PROGRAM = "yamamori"
EXTRA = "edge"

MB = 1e6
DAY_S = 86_400.0
CARD_BYTES = 600_000_000
MINUTES, QUICK_MINUTES = 60.0, 3.0
WARM_S = 75.0
"""Time for the first samplings, so that one-time work is not counted."""

RSS_BAR_MB, CPU_BAR_PERCENT, WRITTEN_BAR_MB = 60.0, 2.0, 50.0
INTERVAL_S = 60
SLOPE = "slope"
"""Name of the simulated slope's thread."""

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


def link_edge_libraries(folder: Path) -> list[str]:
    """Create a folder for PYTHONPATH with links to what ``yamamori[edge]`` requires.

    Some libraries import optional ones if they are installed: with pandas, which no
    node has, sqlite-utils needs 80 MB more memory.

    Args:
        folder: Folder to create.

    Returns:
        Names of the distributions.
    """
    folder.mkdir()
    found: dict[str, Distribution] = {}
    todo = list(_requirements(distribution(PROGRAM), EXTRA))
    while todo:
        name, extras = todo.pop()
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue  # not installed on this platform
        todo += [
            requirement
            for extra in ("", *extras)
            for requirement in _requirements(found[name], extra)
        ]
    for each in found.values():
        for top in {
            file.parts[0] for file in each.files or () if ".." not in file.parts
        }:
            source = Path(str(each.locate_file(top)))
            if source.exists() and not (folder / top).exists():
                (folder / top).symlink_to(source)
    return sorted(found)


def _requirements(library: Distribution, extra: str) -> Iterator[tuple[str, set[str]]]:
    for line in library.requires or ():
        required = Requirement(line)
        if required.marker is None or required.marker.evaluate({"extra": extra}):
            yield required.name.lower(), required.extras


@dataclass(frozen=True)
class Arm:
    """One node.

    Attributes:
        name: Name in tables.
        weather: Its lines of ``[simulation]``.
        has_gateway: Whether a gateway accepts its messages.
        has_written_bar: Whether the target for written bytes applies.
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
class NodeSample:
    """Counters of a node at one time.

    Attributes:
        at_s: Monotonic time.
        process: Resource usage of its process.
        card_bytes: Bytes written to its card so far.
        put: Messages queued so far, by priority.
        acked: Messages delivered so far.
    """

    at_s: float
    process: ProcessUsage
    card_bytes: int
    put: dict[str, int]
    acked: int


@dataclass(frozen=True)
class Weight:
    """Resource usage of one node between two samples.

    Attributes:
        arm: Name of the node.
        minutes: Time between the samples.
        put: Messages queued meanwhile, by priority.
        acked: Messages delivered meanwhile.
        rss_mb: Maximum memory since its start.
        cpu_percent: CPU usage in percent of one core, without the simulated slope.
        slope_percent: CPU usage of the simulated slope.
        card_mb_day: Written to the card, extrapolated to a day.
        process_mb_day: The same by the process's counter, so without the journal.
        threads_s: CPU seconds by thread.
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
        """Return a row of the table."""
        put = " ".join(f"{p}:{n}" for p, n in self.put.items() if n)
        return [self.arm, self.minutes, put, self.acked, self.rss_mb, self.cpu_percent,
                self.slope_percent, self.card_mb_day, self.process_mb_day]  # fmt: skip

    def verdicts(self, arm: Arm) -> list[str]:
        """Compare with the targets."""
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


def start(site: Site[None], arm: Arm, card: Card, port: int) -> None:
    """Start a node with its queue on a card."""
    config = site.folder / f"{arm.name}.toml"
    config.write_text(_settings(arm, card.folder / "queue.db", port))
    site.start(arm.name, None, *_agent(site), "run", "--config", str(config))


def _agent(site: Site[None]) -> tuple[str, ...]:
    path = f"{site.folder / 'libraries'}:{ROOT}"
    # -S: no site-packages, which contain the developer's whole environment.
    return ("env", f"PYTHONPATH={path}", sys.executable, "-S", "-m", "edge_agent")


def take_sample(site: Site[None], arm: Arm, card: Card) -> NodeSample:
    """Read the counters of a node."""
    counters = read_counters(card.folder / "queue.db")
    return NodeSample(
        time.monotonic(),
        read_usage(site.pid(arm.name)),
        card.written_bytes(),
        {str(p): row["put"] for p, row in counters.items()},
        sum(row["acked"] for row in counters.values()),
    )


def compute_weight(arm: Arm, first: NodeSample, last: NodeSample) -> Weight:
    """Compute the resource usage between two samples."""
    passed_s = last.at_s - first.at_s
    before, after = first.process.cpu_s, last.process.cpu_s
    threads = {name: used - before.get(name, 0.0) for name, used in after.items()}
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
    """Run all nodes at the same time."""
    with Site(None) as site, contextlib.ExitStack() as stack:
        libraries = link_edge_libraries(site.folder / "libraries")
        print(f"  with {', '.join(libraries)}", flush=True)
        port, remote_port, unused_port = _free_ports(3)
        site.mosquitto("broker", None, port, *NO_LIMITS)
        site.mosquitto("remote", None, remote_port, *NO_LIMITS)
        start_daemon(site, None, port, ("127.0.0.1", remote_port))
        cards = {
            arm: stack.enter_context(
                mount_card(site.folder / f"{arm.name}.img", CARD_BYTES)
            )
            for arm in ARMS
        }
        for arm in ARMS:
            start(site, arm, cards[arm], port if arm.has_gateway else unused_port)
        time.sleep(WARM_S)
        first = {arm: take_sample(site, arm, cards[arm]) for arm in ARMS}
        time.sleep(minutes * 60)
        weights = [
            compute_weight(arm, first[arm], take_sample(site, arm, cards[arm]))
            for arm in ARMS
        ]
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
    """Measure the resource usage of the agent."""
    if os.geteuid() != 0:
        raise SystemExit("node_weight needs root: it mounts its own card")
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
    result = {"weights": [asdict(each) for each in weights], "bars": verdicts}
    path = write(out, "node_weight", result)
    _draw(path.with_suffix(".png"), weights)
    print(f"\n{text}\n", *verdicts, f"\n  {path}", sep="\n")


if __name__ == "__main__":
    main()

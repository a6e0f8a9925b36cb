"""``python -m experiments.qos_cost``: cost, loss and duplicates of each QoS.

Messages of 120 bytes at a constant rate over a link of 256 kbps and 0.1 s round trip.
In every part the connections are cut at random times, also in the middle of a packet,
and new connections are refused for 0.2 to 2 s; in the later parts the broker is also
ended with SIGKILL and restarted. Every arm has the same outages and kills.

* paho, QoS 0, 1 and 2: a publisher with a persistent session and paho's own
  retransmission; a subscriber of the same QoS at the same broker, whose session is
  persistent as well. Mosquitto has ``persistence true``; it saves on every change, or
  in the last part as by default, every half hour and on exit.
* QoS + custody: our queue and uplink publish to the same broker; the real gateway
  daemon behind it stores messages, sends receipts and removes duplicates, and delivers
  to a second broker, which is not killed and where the subscriber counts.

Losses and duplicates are those at the last subscriber; bytes and frames are those on
the link, including reconnection. Round trips are those of the MQTT protocol.
"""

import json
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

import click

from experiments.bench.chart import bars
from experiments.bench.fault_relay import outages
from experiments.bench.gateway import BROKER_PORT, NO_LIMITS, REMOTE_PORT, start_gateway
from experiments.bench.net import FAR_ADDRESS, Net, Shape, Traffic
from experiments.bench.site import Site, interrupt_on_sigterm
from experiments.bench.table import table, verdict, write

LINK = Shape(256_000)
ONE_WAY_S = 0.05
RELAY_PORT = 1884
MESSAGE_BYTES = 120
LEAD_S = 3.0
"""Time to connect everything before the first message."""

UP_S = 2.0
QUIET_S = 2.0
TIMEOUT_S = 120.0
SEED = 7
ROUND_TRIPS = {0: 0, 1: 1, 2: 2}


@dataclass(frozen=True)
class Part:
    """Faults of a run.

    Attributes:
        name: Name in tables.
        kill_every_s: Mean time between kills of the broker; 0 for no kills.
        saves_each: Whether Mosquitto saves on every change.
    """

    name: str
    kill_every_s: float = 0.0
    saves_each: bool = True


CUTS = Part("link cut")
KILLS = Part("link cut, broker killed", kill_every_s=4.0)
KILLS_DEFAULT = Part("link cut, broker killed, saves by default", 4.0, False)


@dataclass(frozen=True)
class Arm:
    """Sender of a run.

    Attributes:
        name: Name in tables.
        by: paho or uplink.
        qos: QoS of its messages.
        priority: Priority of its messages; up to 3 they may share a publication.
    """

    name: str
    by: str
    qos: int
    priority: int = 4

    @property
    def has_bar(self) -> bool:
        """Whether no loss is allowed."""
        return self.by == "uplink"


PAHO = [Arm(f"paho, QoS {qos}", "paho", qos) for qos in (0, 1, 2)]
ALONE = Arm("QoS 1 + custody", "uplink", 1)
TOGETHER = Arm("QoS 1 + custody, may share", "uplink", 1, priority=1)
OTHERS = [Arm(f"QoS {qos} + custody", "uplink", qos) for qos in (0, 2)]


@dataclass(frozen=True)
class Load:
    """Messages to send.

    Attributes:
        count: Number of messages.
        rate: Messages per second.
    """

    count: int
    rate: float

    @property
    def duration_s(self) -> float:
        """Time from the first message to the last."""
        return self.count / self.rate


@dataclass(frozen=True)
class Run:
    """Result of a run.

    Attributes:
        outages: Number of outages of the link.
        kills: Number of kills of the broker.
        arrived: Messages that the last subscriber received at least once.
        doubled: Duplicates that it received.
        mean_s: Mean delay of the messages that arrived.
        worst_s: Maximum delay.
        traffic: Frames on the link.
        is_done: Whether the sender delivered all messages.
    """

    part: str
    arm: Arm
    sent: int
    outages: int
    kills: int
    arrived: int
    doubled: int
    mean_s: float
    worst_s: float
    traffic: Traffic
    is_done: bool

    @property
    def lost(self) -> int:
        """Messages that never arrived."""
        return self.sent - self.arrived

    def percent(self, count: int) -> float:
        """Return a count in percent of the messages sent."""
        return 100 * count / self.sent

    def row(self) -> list[object]:
        """Return a row of the table."""
        return [
            f"{self.part}: {self.arm.name}",
            self.sent,
            self.lost,
            self.doubled,
            self.traffic.up_bytes / self.sent,
            self.traffic.down_bytes / self.sent,
            self.traffic.up_frames / self.sent,
            self.traffic.down_frames / self.sent,
            ROUND_TRIPS[self.arm.qos],
            self.mean_s,
            self.worst_s,
        ]


def plan_kills(part: Part, duration_s: float) -> list[tuple[float, float]]:
    """Return times and durations of the broker's outages, in seconds."""
    rng = random.Random(SEED)  # noqa: S311 - chance, no secrets
    planned: list[tuple[float, float]] = []
    at_s = 0.0
    while part.kill_every_s:
        at_s += rng.uniform(0.5, 1.5) * part.kill_every_s
        if at_s >= duration_s:
            break
        planned.append((at_s, rng.uniform(0.2, 1.0)))
    return planned


def run(net: Net, part: Part, arm: Arm, load: Load) -> Run:
    """Run one arm through one part."""
    net.shape(LINK)
    net.settle()
    cuts = outages(SEED, load.duration_s, UP_S)
    kills = plan_kills(part, load.duration_s)
    with Site(net) as site:
        options = _far_side(site, part, arm)
        begin_s = time.monotonic() + LEAD_S
        _start_relay(site, begin_s, cuts)
        before = net.traffic()
        _start_publisher(site, arm, load, begin_s)
        for at_s, down_s in kills:
            time.sleep(max(0.0, begin_s + at_s - time.monotonic()))
            site.kill("broker")
            time.sleep(down_s)
            site.mosquitto("broker", net.far, BROKER_PORT, *options)
        site.wait_for_words("publisher", "handed\n", load.duration_s + TIMEOUT_S)
        is_done = _is_delivered(site)
        _wait_until_quiet(site)
        traffic = net.traffic().since(before)
        sent, arrived = site.result("publisher"), site.result("consumer")
    delays_s = [arrived[n][0] - sent[n] for n in sent if n in arrived]
    return Run(
        part.name, arm, len(sent), len(cuts), len(kills), len(delays_s),
        sum(times - 1 for _, times in arrived.values()),
        fmean(delays_s), max(delays_s), traffic, is_done,
    )  # fmt: skip


def _far_side(site: Site[Net], part: Part, arm: Arm) -> tuple[str, ...]:
    """Start broker and subscriber; return the broker's options for restarts."""
    store = site.folder / "broker-store"
    store.mkdir()
    every_change = ("autosave_on_changes true", "autosave_interval 1")
    persistent = ("persistence true", f"persistence_location {store}/")
    options = persistent + (every_change if part.saves_each else ())
    port, qos = BROKER_PORT, arm.qos
    if arm.by == "uplink":
        start_gateway(site, *options)
        port, qos = REMOTE_PORT, 1
    else:
        site.mosquitto("broker", site.net.far, port, *NO_LIMITS, *options)
    site.python(
        "consumer", site.net.far, "experiments.bench.consumer", "--port", port,
        "--filter", "#", "--qos", qos, "--out", site.path("consumer"),
    )  # fmt: skip
    site.wait_for_words("consumer", "ready")
    return NO_LIMITS + options


def _start_relay(
    site: Site[Net], begin_s: float, cuts: list[tuple[float, float]]
) -> None:
    site.path("outages").write_text(json.dumps(cuts))
    site.python(
        "relay", site.net.far, "experiments.bench.fault_relay", "--listen", RELAY_PORT,
        "--to", f"127.0.0.1:{BROKER_PORT}", "--begin", begin_s,
        "--outages", site.path("outages"), "--seed", SEED,
    )  # fmt: skip
    site.wait_for_words("relay", "ready")


def _start_publisher(site: Site[Net], arm: Arm, load: Load, begin_s: float) -> None:
    site.python(
        "publisher", site.net.near, "experiments.bench.numbered_publisher",
        "--by", arm.by,
        "--qos", arm.qos, "--priority", arm.priority, "--host", FAR_ADDRESS,
        "--port", RELAY_PORT, "--count", load.count, "--rate", load.rate,
        "--bytes", MESSAGE_BYTES, "--begin", begin_s, "--out", site.path("publisher"),
    )  # fmt: skip
    site.wait_for_words("publisher", "ready\n")


def _is_delivered(site: Site[Net]) -> bool:
    try:
        site.wait_for_words("publisher", "finished\n", TIMEOUT_S)
    except TimeoutError as error:
        print(f"    {error}")
        return False
    return True


def _wait_until_quiet(site: Site[Net]) -> None:
    """Wait until the subscriber's result has not changed for `QUIET_S`."""
    path = site.path("consumer")
    modified_s = -1.0
    while path.stat().st_mtime != modified_s:
        modified_s = path.stat().st_mtime
        time.sleep(QUIET_S)


def plan(is_quick: bool) -> Iterator[tuple[Part, Arm]]:
    """Yield the runs in order."""
    if is_quick:
        parts = {CUTS: [ALONE], KILLS: [ALONE]}
    else:
        every = [ALONE, TOGETHER, *OTHERS]
        parts = {CUTS: every, KILLS: every, KILLS_DEFAULT: [ALONE]}
    for part, custody in parts.items():
        for arm in (*PAHO, *custody):
            yield part, arm


def _report(runs: list[Run]) -> tuple[str, list[str]]:
    head = ("what goes wrong: who sends", "sent", "lost", "doubled", "B up", "B down",
            "frames up", "down", "round trips", "mean s", "worst s")  # fmt: skip
    text = table(head, [each.row() for each in runs])
    verdicts = []
    for each in runs:
        if each.arm.has_bar:
            label = f"{each.part}: {each.arm.name}:"
            verdicts += [
                verdict(f"{label} lost", each.lost, 0),
                verdict(f"{label} doubled", each.doubled, 0),
            ]
    return text, verdicts


def _draw(path: Path, runs: list[Run]) -> None:
    arms = list(dict.fromkeys(each.arm.name for each in runs))
    by_part_and_arm = {(each.part, each.arm.name): each for each in runs}
    series: dict[str, list[float | None]] = {}
    for part in dict.fromkeys(each.part for each in runs):
        of_part = [by_part_and_arm.get((part, arm)) for arm in arms]
        series[f"lost; {part}"] = [x.percent(x.lost) if x else None for x in of_part]
        series[f"doubled; {part}"] = [
            x.percent(x.doubled) if x else None for x in of_part
        ]
    bars(path, "Messages lost and doubled", arms, series, "% of those sent")


@click.command()
@click.option("--quick", is_flag=True, help="400 messages, two parts, four arms.")
@click.option("--out", type=click.Path(path_type=Path), default="out/experiments")
@click.option("--only", help="Parts and arms whose names hold these words.")
def main(quick: bool, out: Path, only: str | None) -> None:
    """Measure cost and losses of each QoS over an unreliable link."""
    interrupt_on_sigterm()
    load = Load(400, 64.0) if quick else Load(2000, 50.0)
    runs: list[Run] = []
    with Net(ONE_WAY_S) as net:
        for part, arm in plan(quick):
            if only is None or only in f"{part.name}: {arm.name}":
                print(f"  {part.name}: {arm.name} ...", flush=True)
                runs.append(run(net, part, arm, load))
    text, verdicts = _report(runs)
    path = write(out, "qos_cost", {
        "runs": [asdict(each) for each in runs], "bars": verdicts
    })  # fmt: skip
    _draw(path.with_suffix(".png"), runs)
    print(f"\n{text}\n", *verdicts, f"\n  {path}", sep="\n")


if __name__ == "__main__":
    main()

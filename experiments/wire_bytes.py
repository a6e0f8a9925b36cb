"""``python -m experiments.wire_bytes``: bytes of a sensor reading on the link.

A node with the sensors of ``docs/how-to/node.md`` reads them all once per minute of a
simulated storm: six or seven readings, depending on the drivers. Ethernet frames are
counted on both sides of the link, between two times at which the connection is up and
idle: acknowledgements and receipts are included, connection setup and keepalive are not
(they are counted separately).

The peer publishes one JSON message per reading with paho at QoS 1: each when its sensor
is read, or, with fewer bytes, all of a sampling at once, so that the kernel puts most
of them into one segment. Yamamori queues one SenML pack per sampling, and a real
gateway daemon behind a real Mosquitto stores it and sends receipts:

* live: each pack at once. A sampling takes 1.2 s instead of 60 s, longer than the
  gateway batches receipts, so each pack has its own receipt;
* gathered: ``gather_s`` of some samplings. The queue's clock is accelerated like the
  samplings, so that the batching delay in simulated time is that of the field;
* backlog: the uplink is closed during the storm, then opens.

In fast motion there is no keepalive, and one segment carries what several would carry
in the field. ``--field`` measures at the field's pace instead, one sampling a minute:
three arms side by side, in about 13 minutes.

The link has 64 kbps and a round trip of 0.1 s, TCP's own acknowledgements included.
MQTT runs without TLS on both sides.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click

from experiments.bench.chart import bars
from experiments.bench.gateway import BROKER_PORT, NO_LIMITS, start_gateway
from experiments.bench.net import FAR_ADDRESS, ROOT, Net, Shape, Traffic
from experiments.bench.site import Site, interrupt_on_sigterm
from experiments.bench.storm import readings_each
from experiments.bench.table import table, verdict, write
from experiments.bench.wire import SEGMENT_HEADER_BYTES

LINK = Shape(64_000)
ONE_WAY_S = 0.05
LIVE_EVERY_S = 1.2
GATHER_EVERY_S = 0.6
FIELD_EVERY_S = 60.0
SHIPPED = 3
"""Samplings per batch with the default `uplink.gather_s` of three minutes."""

GATHERED = 10
"""Samplings per batch with ten minutes."""

PEER_APART_S = 0.1
RATIO_BAR = 5.0
BAR_PRIORITIES = (1, 2)
HOUR_S = 3600.0
IDLE_S = 125.0
"""Two pings of a keepalive of 60 s."""


@dataclass(frozen=True)
class Arm:
    """Sender of a run.

    Attributes:
        name: Name in tables.
        by: json or uplink.
        priority: Priority of each message.
        every_s: Time between samplings; 0 is a backlog.
        gather_s: Batching time of the uplink.
        apart_s: Time between the peer's messages of one sampling.
        mqtt: MQTT version of the peer.
        qos: QoS of Yamamori's messages.
        idle_s: Send nothing for this time instead.
    """

    name: str
    by: str
    priority: int = 1
    every_s: float = LIVE_EVERY_S
    gather_s: float = 0.0
    apart_s: float = 0.0
    mqtt: str = "3.1.1"
    qos: int = 1
    idle_s: float = 0.0

    @property
    def has_bar(self) -> bool:
        """Whether the target applies: routine messages in batches, or a backlog.

        Not to single messages: most of their cost are the headers of the publication,
        its acknowledgement and its receipt.
        """
        is_ours = self.by == "uplink" and self.priority in BAR_PRIORITIES
        pace_s = self.every_s if self.is_field else GATHER_EVERY_S
        is_small = self.every_s > 0 and self.gather_s < (SHIPPED - 1) * pace_s
        return is_ours and self.qos == 1 and not self.idle_s and not is_small

    @property
    def is_field(self) -> bool:
        """Whether the samplings are as far apart as in the field."""
        return self.every_s >= FIELD_EVERY_S


PEER = Arm("paho JSON, MQTT 3.1.1, at once", "json")
PEER_5 = replace(PEER, name="paho JSON, MQTT 5, at once", mqtt="5")
PEER_APART = replace(PEER, name="paho JSON, one by one", apart_s=PEER_APART_S)
PEER_FIELD = replace(PEER, name="paho JSON, at once, field", every_s=FIELD_EVERY_S)


def arms(priority: int, gathered: Sequence[int] = ()) -> Iterator[Arm]:
    """Yield Yamamori's variants for one priority.

    Args:
        priority: Priority of each message.
        gathered: Batch sizes, in samplings.
    """
    live = Arm(f"yamamori live, priority {priority}", "uplink", priority)
    yield live
    for count in gathered:
        gather_s = (count - 0.5) * GATHER_EVERY_S
        name = f"yamamori gathered by {count}, priority {priority}"
        yield replace(live, name=name, every_s=GATHER_EVERY_S, gather_s=gather_s)
    yield replace(live, name=f"yamamori backlog, priority {priority}", every_s=0.0)


@dataclass(frozen=True)
class Size:
    """Extent of the measurement.

    Attributes:
        live: Samplings of a live arm.
        gathered: Samplings of a gathered arm.
        backlog: Samplings of a backlog.
        field: Samplings at the field's pace.
    """

    live: int
    gathered: int
    backlog: int
    field: int = 9

    def of(self, arm: Arm) -> int:
        """Return the samplings of an arm."""
        if arm.idle_s:
            return 0
        if arm.every_s == 0:
            return self.backlog
        if arm.is_field:
            return self.field
        return self.gathered if arm.gather_s else self.live


FULL = Size(live=50, gathered=100, backlog=1440)
QUICK = Size(live=6, gathered=20, backlog=120)


@dataclass(frozen=True)
class Run:
    """Traffic of one arm on the link.

    Attributes:
        samplings: Number of measured samplings.
        readings: Number of their readings.
        traffic: Their frames.
        connecting: Frames until the connection was ready for the first message.
    """

    arm: Arm
    samplings: int
    readings: int
    traffic: Traffic
    connecting: Traffic

    @property
    def reading_bytes(self) -> float:
        """Bytes of both directions for each reading."""
        return self.both(self.traffic) / self.readings

    @staticmethod
    def both(traffic: Traffic) -> int:
        """Bytes of both directions."""
        return traffic.up_bytes + traffic.down_bytes

    def row(self, *peers: "Run") -> list[object]:
        """Return a row of the table."""
        frames = self.traffic.up_frames + self.traffic.down_frames
        return [
            self.arm.name,
            self.readings,
            self.traffic.up_bytes / self.readings,
            self.traffic.down_bytes / self.readings,
            self.reading_bytes,
            self.traffic.up_frames / self.samplings,
            self.traffic.down_frames / self.samplings,
            f"{frames * SEGMENT_HEADER_BYTES / self.both(self.traffic):.0%}",
            *(peer.reading_bytes / self.reading_bytes for peer in peers),
        ]


def run(net: Net, arm: Arm, samplings: int) -> Run:
    """Measure one arm."""
    net.shape(LINK)
    net.settle()
    with Site(net) as site:
        if arm.by == "json":
            site.mosquitto("broker", net.far, BROKER_PORT, *NO_LIMITS)
            site.python(
                "receiver", net.far, "experiments.bench.receiver", "--port",
                BROKER_PORT, "--filter", "landslide/#", "--urgent", 1,
                "--backlog", 0, "--out", site.path("receiver"),
            )  # fmt: skip
            site.wait_for_words("receiver", "ready")
        else:
            start_gateway(site)
        before = net.traffic()
        _start_node(site, arm, samplings)
        site.wait_for_words("node", "up\n")
        connected = net.traffic()
        pace_s = arm.every_s + arm.gather_s
        site.wait_for_words("node", "begin\n", 60.0 + pace_s)
        begun = net.traffic()
        timeout_s = 120.0 + samplings * arm.every_s + pace_s + arm.idle_s
        site.wait_for_words("node", "end\n", timeout_s)
        done = net.traffic()
    readings = samplings * readings_each()
    return Run(arm, samplings, readings, done.since(begun), connected.since(before))


def _start_node(site: Site[Net], arm: Arm, samplings: int) -> None:
    site.python(
        "node", site.net.near, "experiments.bench.node", "--by", arm.by,
        "--mqtt", arm.mqtt, "--host", FAR_ADDRESS, "--port", BROKER_PORT,
        "--priority", arm.priority, "--every", arm.every_s,
        "--gather", arm.gather_s, "--apart", arm.apart_s, "--qos", arm.qos,
        "--count", samplings, "--warm", 1 if arm.is_field else 3,
        "--idle", arm.idle_s,
        "--out", site.path("node"),
    )  # fmt: skip


def _hourly(runs: list[Run]) -> str:
    """Format the bytes of connection setup and keepalive."""
    head = ("connection alone", "connecting B", "keepalive B/hour")
    rows = [
        [each.arm.name, each.both(each.connecting),
         each.both(each.traffic) * HOUR_S / each.arm.idle_s]
        for each in runs if each.arm.idle_s
    ]  # fmt: skip
    return table(head, rows) + "\n"


def _report(runs: list[Run], peers: Sequence[Arm]) -> tuple[str, list[str]]:
    found = [_first(runs, arm) for arm in peers]
    at_once = found[-1]
    head = ("way", "readings", "up B", "down B", "B/reading", "frames up/sampling",
            "down", "headers", *(f"{arm.name} : this" for arm in peers))  # fmt: skip
    text = table(head, [each.row(*found) for each in runs if not each.arm.idle_s])
    verdicts = [
        verdict(
            f"{each.arm.name}: paho at once : this",
            at_once.reading_bytes / each.reading_bytes, RATIO_BAR, at_most=False,
        )
        for each in runs if each.arm.has_bar
    ]  # fmt: skip
    return text, verdicts


def _first(runs: list[Run], arm: Arm) -> Run:
    return next(each for each in runs if each.arm == arm)


def _draw(path: Path, runs: list[Run]) -> None:
    shown = [each for each in runs if not each.arm.idle_s]
    up = [each.traffic.up_bytes / each.readings for each in shown]
    down = [each.traffic.down_bytes / each.readings for each in shown]
    labels = [each.arm.name for each in shown]
    title = "Bytes on the link per sensor reading"
    bars(path, title, labels, {"from the node": up, "to the node": down}, "bytes")


def _to_dict(each: Run) -> Mapping[str, object]:
    fields = asdict(each)
    return fields if each.arm.idle_s else fields | {"reading_bytes": each.reading_bytes}


def plan(is_quick: bool) -> list[Arm]:
    """Return the runs in order; first the peers for comparison."""
    if is_quick:
        return [PEER_APART, PEER, *arms(1, [SHIPPED, GATHERED]), next(arms(5))]
    live_0 = Arm("yamamori live, priority 1, QoS 0", "uplink", qos=0)
    idle = [
        replace(PEER, name="paho, keepalive 60 s", idle_s=IDLE_S),
        Arm("yamamori, keepalive 60 s", "uplink", idle_s=IDLE_S),
    ]
    ours = [*arms(1, [2, SHIPPED, GATHERED]), live_0, *arms(2, [SHIPPED, GATHERED]),
            *arms(5)]  # fmt: skip
    return [PEER_APART, PEER, PEER_5, *ours, *idle]


def field_arms() -> list[Arm]:
    """Return the runs at the field's pace, with the peer first."""
    live = Arm("yamamori live, field", "uplink", every_s=FIELD_EVERY_S)
    name = f"yamamori gathered by {SHIPPED}, field"
    return [
        PEER_FIELD,
        live,
        replace(live, name=name, gather_s=(SHIPPED - 0.5) * FIELD_EVERY_S),
    ]


def _run_apart(arm: Arm) -> Run:
    """Measure one arm in a process of its own: `Net` is named after it."""
    module = [sys.executable, "-m", "experiments.wire_bytes"]
    done = subprocess.run(
        [*module, "--one", json.dumps(asdict(arm))],
        check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    result = json.loads(done.stdout.splitlines()[-1])
    sent, connecting = (Traffic(**result[key]) for key in ("traffic", "connecting"))
    return Run(arm, result["samplings"], result["readings"], sent, connecting)


def _run_all(arms: Sequence[Arm], size: Size) -> Iterator[Run]:
    with Net(ONE_WAY_S) as net:
        for arm in arms:
            print(f"  {arm.name} ...", flush=True)
            yield run(net, arm, size.of(arm))


@click.command()
@click.option("--quick", is_flag=True, help="Priority 1 and 5, few samplings.")
@click.option("--out", type=click.Path(path_type=Path), default="out/experiments")
@click.option("--only", help="Arms whose name holds these words, and the peer.")
@click.option("--field", is_flag=True, help="One sampling a minute, side by side.")
@click.option("--one", hidden=True)
def main(
    quick: bool, out: Path, only: str | None, field: bool, one: str | None
) -> None:
    """Measure the bytes per reading on the link."""
    interrupt_on_sigterm()
    size = QUICK if quick else FULL
    if one is not None:
        (alone,) = _run_all([Arm(**json.loads(one))], size)
        print(json.dumps(_to_dict(alone)))
        return
    peers = (PEER_FIELD,) if field else (PEER_APART, PEER)
    if field:
        with ThreadPoolExecutor() as pool:
            runs = list(pool.map(_run_apart, field_arms()))
    else:
        arms = [
            each for each in plan(quick) if each in peers or (only or "") in each.name
        ]
        runs = list(_run_all(arms, size))
    text, verdicts = _report(runs, peers)
    hourly = _hourly(runs) if any(each.arm.idle_s for each in runs) else ""
    result = {"runs": [_to_dict(each) for each in runs], "bars": verdicts}
    path = write(out, "wire_bytes", result)
    _draw(path.with_suffix(".png"), runs)
    print(f"\n{text}\n\n{hourly}", *verdicts, f"\n  {path}", sep="\n")


if __name__ == "__main__":
    main()

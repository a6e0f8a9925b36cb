"""``python -m experiments.p_mqtt``: the experiment of the P-MQTT paper.

Two hundred clients on a gateway's LAN, 100 of high and 100 of low priority, each
publish one message of 120 bytes at the same moment; a subscriber is beyond a slow
link. Three variants: the subscriber is connected to the gateway's plain Mosquitto (as
in the paper); a priority queue that counts messages in flight; the real gateway
daemon. The delay of the link is added to the data, not to the answers; some links have
no added delay, and some let a burst pass at line speed.

Source: P-MQTT (seed 001) section 4.
"""

import itertools
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from edge_agent.uplink.in_flight import FlightLimits
from experiments.bench.chart import bars
from experiments.bench.gateway import NO_LIMITS, start_daemon
from experiments.bench.net import FAR_ADDRESS, NEAR_ADDRESS, Net, Shape
from experiments.bench.resource_usage import cpu_s
from experiments.bench.site import Site, interrupt_on_sigterm
from experiments.bench.table import table, verdict, write
from experiments.bench.wire import CELL

PORT = 1883
RELAY_PORT = 1884
EACH = 100
GATEWAY_IDLE_S = 3.5
"""Time for the gateway to detect that its broker sends no receipts."""

PLAIN = "plain mosquitto"
PLAIN_QOS_0 = "plain mosquitto, QoS 0"
HEAP = "priority queue, 20 messages"
YAMAMORI = "yamamori"

SHAPES = {
    "500 kbps / 60 ms": Shape(500_000, 0.060),
    "100 kbps / 100 ms": Shape(100_000, 0.100),
    "50 kbps / 100 ms": Shape(50_000, 0.100),
    "30 kbps / 100 ms": Shape(30_000, 0.100),
    "500 kbps": Shape(500_000),
    "100 kbps": Shape(100_000),
    "50 kbps": Shape(50_000),
    "30 kbps": Shape(30_000),
    "30 kbps, burst 16 kB": Shape(30_000, burst_bytes=16_000),
}
MOST_HIGH_RATIO = 0.55
MOST_HIGH_RATIOS = {"500 kbps / 60 ms": 1.02, "500 kbps": 0.65}
MOST_ALL_RATIO = 1.03
QUICK = ["500 kbps / 60 ms", "30 kbps / 100 ms", "500 kbps", "30 kbps"]


@dataclass(frozen=True)
class Run:
    """Mean delays of one run, in seconds.

    Attributes:
        link: A key of `SHAPES`.
        wire_bytes: Bytes per message that the gateway's side sent on the link.
        cpu_s: CPU time of the programs that forward: broker, and gateway if any.
    """

    link: str
    arm: str
    high_s: float
    low_s: float
    all_s: float
    last_s: float
    wire_bytes: float
    cpu_s: float


def run(net: Net, link: str, arm: str, window_bytes: int, seed: int) -> Run:
    """Run one arm over one link."""
    shape = SHAPES[link]
    net.shape(Shape(10_000_000))  # all connections stand before the moment
    with Site(net) as site:
        _prepare(site, shape, arm, window_bytes)
        net.shape(shape)
        if arm == YAMAMORI:
            time.sleep(GATEWAY_IDLE_S)
        before_bytes, before_s = net.sent_bytes(), _forwarders_cpu_s(site, arm)
        topic = CELL if arm in {PLAIN, PLAIN_QOS_0} else f"/forward{CELL}/pri{{pri}}"
        site.python(
            "publishers", net.near, "experiments.bench.publishers", "--port", PORT,
            "--topic", topic, "--each", EACH, "--seed", seed,
            "--out", site.path("publishers"),
        )  # fmt: skip
        site.wait_for_end("receiver", 45.0)
        wire_bytes = (net.sent_bytes() - before_bytes) / (2 * EACH)
        used_s = _forwarders_cpu_s(site, arm) - before_s
        sent, arrived = site.result("publishers"), site.result("receiver")
    return _judge(link, arm, sent, arrived, (wire_bytes, used_s))


def _forwarders_cpu_s(site: Site[Net], arm: str) -> float:
    names = ["local", *{HEAP: ["forwarder"], YAMAMORI: ["gateway"]}.get(arm, [])]
    return sum(cpu_s(site.pid(name)) for name in names)


def _prepare(site: Site[Net], shape: Shape, arm: str, window_bytes: int) -> None:
    """Start everything except the publishers."""
    near, far = site.net.near, site.net.far
    if arm in {PLAIN, PLAIN_QOS_0}:
        site.mosquitto("local", near, PORT)
        # The subscriber's side is the relay's near side: data comes back through it.
        _relay(site, f"{NEAR_ADDRESS}:{PORT}", back_s=shape.data_delay_s)
        _receiver(site, RELAY_PORT, qos=0 if arm == PLAIN_QOS_0 else 1)
        return
    site.mosquitto("local", near, PORT, *NO_LIMITS)
    site.mosquitto("remote", far, PORT, *NO_LIMITS)
    _relay(site, f"127.0.0.1:{PORT}", there_s=shape.data_delay_s)
    _receiver(site, PORT, qos=1)
    if arm == HEAP:
        site.python(
            "forwarder", near, "experiments.bench.forwarder", "--near-port", PORT,
            "--host", FAR_ADDRESS, "--port", RELAY_PORT,
        )  # fmt: skip
        site.wait_for_words("forwarder", "ready")
    else:
        uplink = f"window_bytes = {window_bytes}"
        start_daemon(site, near, PORT, (FAR_ADDRESS, RELAY_PORT), uplink)


def _relay(
    site: Site[Net], target: str, there_s: float = 0.0, back_s: float = 0.0
) -> None:
    site.python(
        "relay", site.net.far, "experiments.bench.relay", "--listen", RELAY_PORT,
        "--to", target, "--there", there_s, "--back", back_s,
    )  # fmt: skip
    site.wait_for_words("relay", "ready")


def _receiver(site: Site[Net], port: int, qos: int) -> None:
    site.python(
        "receiver", site.net.far, "experiments.bench.receiver", "--port", port,
        "--filter", CELL, "--qos", qos, "--urgent", EACH, "--backlog", EACH,
        "--out", site.path("receiver"),
    )  # fmt: skip
    site.wait_for_words("receiver", "ready")


def _judge(
    link: str,
    arm: str,
    sent: dict[str, float],
    arrived: dict[str, float],
    used: tuple[float, float],
) -> Run:
    missing = sorted(set(sent) - set(arrived))
    if missing:
        raise RuntimeError(f"{arm}, {link}: {len(missing)} messages did not arrive")
    delays_s = {name: arrived[name] - sent[name] for name in sent}
    mean = {
        kind: statistics.fmean(s for name, s in delays_s.items() if name[0] in kind)
        for kind in ("u", "b", "ub")
    }
    last_s = max(delays_s.values())
    return Run(link, arm, mean["u"], mean["b"], mean["ub"], last_s, *used)


def _means(runs: list[Run]) -> dict[tuple[str, str], dict[str, float]]:
    """Return the mean of each number over the repetitions of a link and an arm."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for each in runs:
        groups.setdefault((each.link, each.arm), []).append(each)
    names = ("high_s", "low_s", "all_s", "last_s", "wire_bytes", "cpu_s")
    return {
        key: {n: statistics.fmean(getattr(r, n) for r in group) for n in names}
        for key, group in groups.items()
    }


def _report(runs: list[Run]) -> tuple[str, list[str]]:
    means = _means(runs)
    head = ("link, way", "high s", "low s", "all s", "last s", "B/message", "CPU s",
            "high : plain", "each run", "all : plain", "each run")  # fmt: skip
    rows: list[list[object]] = []
    verdicts: list[str] = []
    for (link, arm), mean in means.items():
        plain = means[link, PLAIN]
        high, whole = mean["high_s"] / plain["high_s"], mean["all_s"] / plain["all_s"]
        repeated = [each for each in runs if (each.link, each.arm) == (link, arm)]
        rows.append([
            f"{link}  {arm}",
            *mean.values(),
            high,
            _spread([each.high_s / plain["high_s"] for each in repeated]),
            whole,
            _spread([each.all_s / plain["all_s"] for each in repeated]),
        ])
        if arm == YAMAMORI:
            bar = MOST_HIGH_RATIOS.get(link, MOST_HIGH_RATIO)
            verdicts += [
                verdict(f"{link}: high : plain", high, bar),
                verdict(f"{link}: all : plain", whole, MOST_ALL_RATIO),
            ]
    return table(head, rows), verdicts


def _spread(ratios: Sequence[float]) -> str:
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def _draw(path: Path, links: Sequence[str], runs: list[Run]) -> None:
    means = _means(runs)
    series = {
        f"{arm}, {kind}": [
            means[link, arm][f"{kind}_s"] / means[link, PLAIN][f"{kind}_s"]
            for link in links
        ]
        for arm in (HEAP, YAMAMORI)
        for kind in ("high", "all")
    }
    title = "Delay with priorities : delay without"
    bars(path, title, links, series, "ratio of mean delays")


@click.command()
@click.option("--quick", is_flag=True, help="One run of each, four links.")
@click.option("--out", type=click.Path(path_type=Path), default="out/experiments")
@click.option("--runs", "count", type=int, default=2, help="Runs of each.")
@click.option("--window-bytes", type=int, default=FlightLimits.window_bytes)
@click.option("--only", type=click.Choice(list(SHAPES)), help="One link.")
def main(
    quick: bool, out: Path, count: int, window_bytes: int, only: str | None
) -> None:
    """Repeat the experiment of the P-MQTT paper."""
    interrupt_on_sigterm()
    links = [only] if only else QUICK if quick else list(SHAPES)
    runs: list[Run] = []
    seeds = range(1, 2 if quick else count + 1)
    arms = (PLAIN, PLAIN_QOS_0, HEAP, YAMAMORI)
    with Net() as net:
        for link, seed, arm in itertools.product(links, seeds, arms):
            print(f"  {link}, {arm} ...", flush=True)
            runs.append(run(net, link, arm, window_bytes, seed))
    text, verdicts = _report(runs)
    result: dict[str, Any] = {
        "window_bytes": window_bytes,
        "runs": [asdict(each) for each in runs],
        "bars": verdicts,
    }
    _draw(out / "p_mqtt.png", links, runs)
    print(f"\n{text}\n", *verdicts, f"\n  {write(out, 'p_mqtt', result)}", sep="\n")


if __name__ == "__main__":
    main()

"""``python -m experiments.outages``: urgent messages after an outage.

A node with a small backlog sends an urgent message of priority 5 every few seconds.
Its link of 64 kbps is cut for a while: every frame is lost, or the node's interface is
down, or the far machine refuses connections. Measured is the time from the end of the
outage, or from the hand-over if that was later, to the arrival. Three senders, each on
a link of its own: a plain paho client and a Mosquitto bridge, with their own defaults
and with a wait of 1 to 2 s before each connection ("tuned"), and Yamamori's queue and
uplink, with one gateway and with two behind the same link.

The moment of the cut is random, and many links run side by side: almost all of the time
is waiting.
"""

import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from experiments.bench.net import FAR_ADDRESS, ROOT, Net, Shape, run_command
from experiments.bench.site import Site, interrupt_on_sigterm
from experiments.bench.table import table, write

PORT, SECOND_PORT = 1883, 1884
LINK = Shape(64_000)
KINDS = ("lost", "down", "refused")
TUNED = " tuned"
ARMS = (
    "paho", f"paho{TUNED}", "bridge", f"bridge{TUNED}", "uplink", "two gateways"
)  # fmt: skip
TUNED_WAITS_S = (1, 2)
"""Shortest and longest wait before a connection of a tuned peer."""

BACKLOG = 20
URGENT_EVERY_S = 4.0
URGENT_PER_OUTAGE = 8
"""At most, so that the link's rate does not matter."""

SETTLE_S = 12.0
"""From the start of the sender to the earliest cut: the backlog is gone by then."""

ARRIVAL_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Outage:
    """One outage.

    Attributes:
        kind: What happens to the link, one of `KINDS`.
        lasts_s: For how long.
        arm: The sender, one of `ARMS`.
        seed: Of the moment of the cut.
    """

    kind: str
    lasts_s: float
    arm: str
    seed: int


@dataclass(frozen=True)
class Recovery:
    """What came of one outage.

    Attributes:
        outage: The outage.
        first_s: From its end to the arrival of the first urgent message that was handed
            over before.
        worst_s: The longest time of an urgent message, the outage not counted.
        missing: Messages that never arrived.
    """

    outage: Outage
    first_s: float
    worst_s: float
    missing: int


def run(outage: Outage) -> Recovery:
    """Run one outage on a link of its own; needs root."""
    every_s = max(URGENT_EVERY_S, outage.lasts_s / URGENT_PER_OUTAGE)
    urgent = round((SETTLE_S + outage.lasts_s) / every_s) + 1
    with Net() as net, Site(net) as site:
        net.shape(LINK)
        _start(site, outage.arm, urgent, every_s)
        rng = random.Random(f"{outage.seed} {outage.kind} {outage.lasts_s}")  # noqa: S311
        time.sleep(SETTLE_S + rng.random() * URGENT_EVERY_S)
        _cut(net, outage.kind, is_cut=True)
        cut_s = time.monotonic()
        time.sleep(max(0.0, cut_s + outage.lasts_s - time.monotonic()))
        _cut(net, outage.kind, is_cut=False)
        back_s = time.monotonic()
        site.wait_for_end("receiver", ARRIVAL_TIMEOUT_S)
        handed, arrived = site.result("sender"), site.result("receiver")
    return _judge(outage, (cut_s, back_s), handed, arrived)


def _start(site: Site[Net], arm: str, urgent: int, every_s: float) -> None:
    near, far = site.net.near, site.net.far
    second = (f"listener {SECOND_PORT}",) if arm == "two gateways" else ()
    site.mosquitto("remote", far, PORT, "max_queued_messages 0", *second)
    by = arm.removesuffix(TUNED)
    is_ours = by not in {"paho", "bridge"}
    waits_s = TUNED_WAITS_S if arm.endswith(TUNED) else ()
    site.python(
        "receiver", far, "experiments.bench.receiver", "--port", PORT,
        "--filter", "/forward/#", "--urgent", urgent, "--backlog", BACKLOG,
        "--out", site.path("receiver"), *(["--receipts"] if is_ours else []),
    )  # fmt: skip
    site.wait_for_words("receiver", "ready")
    host = FAR_ADDRESS
    if by == "bridge":
        tuned = ("restart_timeout {} {}".format(*waits_s),) if waits_s else ()
        site.mosquitto(
            "local", near, PORT, "max_queued_messages 0", "connection up",
            f"address {host}:{PORT}", "topic # out 1",
            "bridge_protocol_version mqttv50", *tuned,
        )  # fmt: skip
        host = "127.0.0.1"
    site.python(
        "sender", near, "experiments.bench.sender",
        "--by", "uplink" if is_ours else "paho", "--host", host, "--port", PORT,
        "--backlog", BACKLOG, "--urgent", urgent, "--urgent-bytes", 200,
        "--every", every_s, "--out", site.path("sender"),
        *(["--second-port", SECOND_PORT] if second else []),
        *(["--reconnect", *waits_s] if waits_s and by == "paho" else []),
    )  # fmt: skip
    site.wait_for_words("sender", "ready")


def _cut(net: Net, kind: str, *, is_cut: bool) -> None:
    if kind == "lost":
        net.cut(is_cut=is_cut)
    elif kind == "down":
        state = "down" if is_cut else "up"
        run_command(f"ip -n {net.near} link set slow {state}")
    else:
        net.refuse(is_refused=is_cut)


def _judge(
    outage: Outage,
    span: tuple[float, float],
    handed: dict[str, float],
    arrived: dict[str, float],
) -> Recovery:
    cut_s, back_s = span
    delays_s = [
        arrived[name] - max(handed_s, back_s)
        for name, handed_s in handed.items()
        if name[0] == "u" and arrived.get(name, cut_s) > back_s
    ]
    during = [n for n, at_s in handed.items() if n[0] == "u" and cut_s < at_s < back_s]
    first = min((arrived[n] - back_s for n in during if n in arrived), default=None)
    return Recovery(
        outage,
        float("inf") if first is None else first,
        max(delays_s, default=float("inf")),
        len(set(handed) - set(arrived)),
    )


def _run_apart(outage: Outage) -> Recovery:
    """Run one outage in a process of its own: `Net` is named after it."""
    module = [sys.executable, "-m", "experiments.outages"]
    done = subprocess.run(
        [*module, "--one", json.dumps(asdict(outage))],
        check=True, capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    result = json.loads(done.stdout.splitlines()[-1])
    print(f"  {outage}: {result['worst_s']:.2f} s", flush=True)
    return Recovery(outage, result["first_s"], result["worst_s"], result["missing"])


def _rows(recoveries: Sequence[Recovery]) -> Iterable[list[object]]:
    groups: dict[tuple[str, float, str], list[Recovery]] = {}
    for each in recoveries:
        key = (each.outage.kind, each.outage.lasts_s, each.outage.arm)
        groups.setdefault(key, []).append(each)
    for (kind, lasts_s, arm), group in sorted(groups.items()):
        firsts = [each.first_s for each in group]
        yield [
            f"{kind} {lasts_s:g} s  {arm}", len(group),
            statistics.median(firsts), max(firsts),
            max(each.worst_s for each in group),
            sum(each.missing for each in group),
        ]  # fmt: skip


@click.command()
@click.option(
    "--lasts", "lasts_s", multiple=True, type=float, default=(10, 30, 60, 120)
)
@click.option("--kind", "kinds", multiple=True, type=click.Choice(KINDS), default=KINDS)
@click.option("--arm", "arms", multiple=True, type=click.Choice(ARMS), default=ARMS)
@click.option("--seeds", default=8, show_default=True)
@click.option("--together", default=12, show_default=True, help="Links at a time.")
@click.option("--one", hidden=True)
@click.option("--out", type=click.Path(path_type=Path), default="out/experiments")
def main(  # noqa: PLR0913, PLR0917 - one for each option
    lasts_s: Sequence[float],
    kinds: Sequence[str],
    arms: Sequence[str],
    seeds: int,
    together: int,
    one: str | None,
    out: Path,
) -> None:
    """Measure the latency of urgent messages after outages."""
    interrupt_on_sigterm()
    if one is not None:
        print(json.dumps(asdict(run(Outage(**json.loads(one))))))
        return
    outages = [
        Outage(kind, each_s, arm, seed)
        for each_s in sorted(lasts_s, reverse=True)
        for seed in range(seeds)
        for kind in kinds
        for arm in arms
    ]
    with ThreadPoolExecutor(together) as pool:
        recoveries = list(pool.map(_run_apart, outages))
    head = (
        "outage, sender",
        "n",
        "first, median s",
        "first, worst s",
        "worst s",
        "missing",
    )
    print(f"\n{table(head, list(_rows(recoveries)))}")
    result = {"recoveries": [asdict(each) for each in recoveries]}
    print(f"\n  {write(out, 'outages', result)}")


if __name__ == "__main__":
    main()

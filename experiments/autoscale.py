"""``python -m experiments.autoscale``: ten times the load on one valley.

A real Manager, a gateway and three distributed Mosquittos, each held to so many bytes
in a second (the Gamma paper holds their CPUs). One holds the world, two are standby.
The load of one valley grows tenfold; nobody does anything. Beside it the same without
the autoscaler. Linux and root only.

Source: Gamma (seed 000) section 5.2, and its future work.
"""

import itertools
import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from experiments.bench.chart import lines
from experiments.bench.lan import Lan
from experiments.bench.site import Site, interrupt_on_sigterm
from experiments.bench.table import table, verdict, write
from service_runtime.tls import Endpoint

MANAGER, LOCAL, BROKERS = 1883, 1884, (1885, 1886, 1887)
BEHIND = 100
"""A broker's own port is so much above the one where it is narrow."""

ALONE, SCALED = "without autoscale", "with autoscale"
TARGET_S = 2.0
BACK_WITHIN_S = 90.0
TELLS = (
    "log_dest topic",
    "log_dest stderr",
    "log_type information",
    "log_type notice",
    "log_type subscribe",
    "log_type unsubscribe",
)


@dataclass(frozen=True)
class Plan:
    """One run.

    Attributes:
        rate: Messages in a second of each of the 20 nodes.
        factor: By which one valley's pace grows.
        before_s: Time before it grows.
        surge_s: Time after.
        bears: Bytes that each distributed broker takes in a second.
    """

    rate: float
    factor: float
    before_s: float
    surge_s: float
    bears: float


@dataclass(frozen=True)
class Run:
    """What came of it.

    Attributes:
        delays_s: Median delay of what was sent in each second.
        back_s: From the surge until the delay stays under the target.
        lost: Messages that did not arrive.
    """

    arm: str
    delays_s: list[float | None]
    back_s: float | None
    lost: int
    decisions: list[str]


def run(lan: Lan, arm: str, plan: Plan) -> Run:
    """Run one arm."""
    with Site(lan) as site:
        namespace = lan.namespace("site")
        for port in BROKERS:
            _held_broker(site, namespace, port, plan.bears)
        site.mosquitto("at-manager", namespace, MANAGER)
        no_limits = ("max_queued_messages 0", "max_inflight_messages 0")
        site.mosquitto("at-gateway", namespace, LOCAL, *no_limits, *TELLS)
        _daemons(site, namespace, "on" if arm == SCALED else "off")
        site.python(
            "valleys", namespace, "experiments.bench.valleys", "--port", LOCAL,
            "--rate", plan.rate, "--factor", plan.factor, "--before", plan.before_s,
            "--surge", plan.surge_s, "--out", site.path("valleys"),
        )  # fmt: skip
        site.wait_for_end("valleys", plan.before_s + plan.surge_s + 90.0)
        told = site.result("valleys")
        log = (site.folder / "manager.log").read_text()
    marks = [line for line in log.splitlines() if "autoscale: " in line]
    return _judge(arm, plan, told, [line.partition("autoscale: ")[2] for line in marks])


def _held_broker(site: Site[Lan], namespace: str, port: int, rate: float) -> None:
    """A Mosquitto that bears only so much."""
    behind = port + BEHIND
    no_limits = ("max_queued_messages 0", "max_inflight_messages 0")
    site.mosquitto(f"broker-{port}", namespace, behind, *no_limits, "sys_interval 2")
    site.python(
        f"narrow-{port}", namespace, "experiments.bench.narrow", "--listen", port,
        "--to", behind, "--rate", rate,
    )  # fmt: skip
    site.wait_for_words(f"narrow-{port}", "ready")


def _daemons(site: Site[Lan], namespace: str, mode: str) -> None:
    standby = [f"mqtt://{Endpoint('127.0.0.1', port)}" for port in BROKERS[1:]]
    manager = site.folder / "manager.toml"
    manager.write_text(
        f'[manager]\nbroker = "mqtt://127.0.0.1:{MANAGER}"\n'
        f'data = "{site.folder}/manager"\n'
        f'[[broker]]\ntopic = "/"\nurl = "mqtt://127.0.0.1:{BROKERS[0]}"\n'
        f'[autoscale]\nmode = "{mode}"\nbrokers = {json.dumps(standby)}\n'
        f"most_age_s = {TARGET_S}\nmost_cpu = 1.0\nhold_s = 5.0\nrest_s = 20.0\n"
    )
    gateway = site.folder / "gateway.toml"
    gateway.write_text(
        f'[gateway]\nid = "bench"\nbroker = "mqtt://127.0.0.1:{LOCAL}"\n'
        f'managers = ["mqtt://127.0.0.1:{MANAGER}"]\nbeat_s = 1.0\n'
        f'data = "{site.folder}/gateway"\n'
    )
    command = ("gateway_daemon", "manager", "--config", manager)
    site.python("manager", namespace, *command)
    command = ("gateway_daemon", "run", "--config", gateway)
    site.python("gateway", namespace, *command)
    site.wait_for_words("gateway", f"uplink to 127.0.0.1:{BROKERS[0]} is up")


def _judge(arm: str, plan: Plan, told: dict[str, Any], decisions: list[str]) -> Run:
    """Median delay by the second of sending; what never came counts as long."""
    seconds: dict[int, list[float]] = {}
    for sent_s, arrived_s in told["times"]:
        delay_s = 1e9 if arrived_s is None else arrived_s - sent_s
        seconds.setdefault(int(sent_s - told["began_s"]), []).append(delay_s)
    last = int(plan.before_s + plan.surge_s)
    delays = [
        statistics.median(seconds[s]) if s in seconds else None for s in range(last)
    ]
    hot = [
        s for s, delay in enumerate(delays) if delay is not None and delay > TARGET_S
    ]
    back_s = None
    if not hot:
        back_s = 0.0
    elif hot[-1] + 5 < last:  # under it for the last five seconds at least
        back_s = hot[-1] + 1 - plan.before_s
    lost = sum(arrived_s is None for _, arrived_s in told["times"])
    return Run(arm, delays, back_s, lost, decisions)


def _report(runs: list[Run], plan: Plan) -> tuple[str, list[str]]:
    head = ("arm", "before s", "highest s", "at the end s", "back after s", "lost")
    rows = []
    for each in runs:
        known = [d for d in each.delays_s if d is not None]
        before = [d for d in each.delays_s[: int(plan.before_s)] if d is not None]
        end = statistics.median(known[-5:])
        rows.append([
            each.arm,
            statistics.median(before),
            max(known),
            end,
            each.back_s,
            each.lost,
        ])
    alone, scaled = runs
    worst_s = max((d for d in alone.delays_s if d is not None), default=0.0)
    label = f"delay back under {TARGET_S:g} s, seconds after the surge"
    return table(head, rows), [
        verdict(f"{ALONE}: highest delay s", worst_s, TARGET_S, at_most=False),
        verdict(label, scaled.back_s, BACK_WITHIN_S),
        verdict("messages lost", float(scaled.lost), 0.0),
    ]


@click.command()
@click.option("--quick", is_flag=True, help="A minute of surge instead of three.")
@click.option("--out", type=click.Path(path_type=Path), default="out/experiments")
@click.option("--rate", type=float, default=3.0, show_default=True)
@click.option("--bears", type=float, default=50_000.0, show_default=True)
def main(quick: bool, out: Path, rate: float, bears: float) -> None:
    """Give one valley ten times its load, and watch."""
    interrupt_on_sigterm()
    plan = Plan(rate, 10.0, 15.0, 75.0 if quick else 180.0, bears)
    runs = []
    with Lan(["site"]) as lan:
        for arm in (ALONE, SCALED):
            print(f"  {arm} ...", flush=True)
            runs.append(run(lan, arm, plan))
    text, bars = _report(runs, plan)
    path = write(
        out,
        "autoscale",
        {"plan": asdict(plan), "runs": [asdict(r) for r in runs], "bars": bars},
    )
    seconds = [float(s) for s in range(int(plan.before_s + plan.surge_s))]
    lines(
        out / "autoscale.png",
        f"Ten times the load on one valley after {plan.before_s:.0f} s",
        seconds,
        {r.arm: [d and min(d, 120.0) for d in r.delays_s] for r in runs},
        "sent at, s",
        "median delay, s",
    )
    decisions = itertools.chain.from_iterable(r.decisions for r in runs)
    print(f"\n{text}\n", *decisions, *bars, f"\n  {path}", sep="\n")


if __name__ == "__main__":
    main()

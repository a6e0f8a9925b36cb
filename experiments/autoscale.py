"""``python -m experiments.autoscale``: ten times the load on one valley.

A real Manager, a gateway and three distributed Mosquittos, each limited to a byte rate
(the Gamma paper limits their CPUs). One serves the whole area, two are standby. The
load of one valley grows tenfold, without any action by an operator; for comparison the
same without the autoscaler. Linux and root only.

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
from experiments.bench.gateway import NO_LIMITS, SUBSCRIPTION_LOG
from experiments.bench.lan import Lan
from experiments.bench.site import Site, interrupt_on_sigterm
from experiments.bench.table import table, verdict, write
from service_runtime.tls import Endpoint

MANAGER, LOCAL, BROKERS = 1883, 1884, (1885, 1886, 1887)
PORT_OFFSET = 100
"""Difference between a broker's own port and that of its rate limiter."""

ALONE, SCALED = "without autoscale", "with autoscale"
TARGET_S = 2.0
BACK_WITHIN_S = 90.0


@dataclass(frozen=True)
class Plan:
    """Parameters of a run.

    Attributes:
        rate: Messages per second of each of the 20 nodes.
        factor: Factor by which one valley's rate grows.
        before_s: Time before the surge.
        surge_s: Duration of the surge.
        bears: Byte rate of each distributed broker, bytes per second.
    """

    rate: float
    factor: float
    before_s: float
    surge_s: float
    bears: float


@dataclass(frozen=True)
class Run:
    """Result of a run.

    Attributes:
        delays_s: Median delay of the messages sent in each second.
        back_s: Time from the surge until the delay stays below the target.
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
            _limited_broker(site, namespace, port, plan.bears)
        site.mosquitto("at-manager", namespace, MANAGER)
        site.mosquitto("at-gateway", namespace, LOCAL, *NO_LIMITS, *SUBSCRIPTION_LOG)
        _daemons(site, namespace, "on" if arm == SCALED else "off")
        site.python(
            "load", namespace, "experiments.bench.surge_load", "--port", LOCAL,
            "--rate", plan.rate, "--factor", plan.factor, "--before", plan.before_s,
            "--surge", plan.surge_s, "--out", site.path("load"),
        )  # fmt: skip
        site.wait_for_end("load", plan.before_s + plan.surge_s + 90.0)
        result = site.result("load")
        log = (site.folder / "manager.log").read_text()
    marks = [line for line in log.splitlines() if "autoscale: " in line]
    decisions = [line.partition("autoscale: ")[2] for line in marks]
    return _evaluate(arm, plan, result, decisions)


def _limited_broker(site: Site[Lan], namespace: str, port: int, rate: float) -> None:
    """Start a Mosquitto behind a rate limiter."""
    own_port = port + PORT_OFFSET
    site.mosquitto(f"broker-{port}", namespace, own_port, *NO_LIMITS, "sys_interval 2")
    limiter = f"rate-limiter-{port}"
    site.python(
        limiter, namespace, "experiments.bench.rate_limiter", "--listen", port,
        "--to", own_port, "--rate", rate,
    )  # fmt: skip
    site.wait_for_words(limiter, "ready")


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


def _evaluate(
    arm: str, plan: Plan, result: dict[str, Any], decisions: list[str]
) -> Run:
    """Compute the median delay per second of sending; lost messages count as 1e9 s."""
    seconds: dict[int, list[float]] = {}
    for sent_s, arrived_s in result["times"]:
        delay_s = 1e9 if arrived_s is None else arrived_s - sent_s
        seconds.setdefault(int(sent_s - result["began_s"]), []).append(delay_s)
    last = int(plan.before_s + plan.surge_s)
    delays = [
        statistics.median(seconds[s]) if s in seconds else None for s in range(last)
    ]
    late = [
        s for s, delay in enumerate(delays) if delay is not None and delay > TARGET_S
    ]
    back_s = None
    if not late:
        back_s = 0.0
    elif late[-1] + 5 < last:  # below the target for at least the last five seconds
        back_s = late[-1] + 1 - plan.before_s
    lost = sum(arrived_s is None for _, arrived_s in result["times"])
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
    """Measure the delay when one valley sends ten times its load."""
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

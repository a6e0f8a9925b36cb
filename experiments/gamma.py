"""``python -m experiments.gamma``: tables 4, 5 and 6 of the Gamma paper, and growth.

A hundred publishers, a hundred subscribers, four areas, 150 bytes; every subscriber
receives the messages of the 25 publishers of its area. Everything at QoS 1 (the paper
used QoS 0), and each message is stored on a gateway's disk twice on its path. One
machine runs everything: the publishers send five times per second, half as often as in
the paper, and a Raspberry Pi of the paper is a control group with a share of a core,
such that the single broker is overloaded, as in the paper.

Scalability from one gateway to eight is messages/s in a flood. Each gateway is limited
to a twentieth of a core, so that one machine can run eight of them and their clients.
Every message passes one gateway to the distributed broker, and returns to one
subscriber of its area on each gateway that serves the area.

Lost and duplicated messages are counted while the system changes or fails under load:
an administrator adds a distributed broker, or a gateway daemon or the Manager is ended
with SIGKILL and restarted. QoS 1 from publisher to subscriber; the subscribers drop
repeated message ids, as our client does.

Source: Gamma (seed 000) section 5, tables 4 to 6.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import click

from experiments.bench import chart
from experiments.bench.federation import (
    ALLOW_PLAIN,
    AREAS,
    MACHINES,
    PORT,
    Federation,
    Shape,
    go,
    start_clients,
    start_flood,
    wait_for_result,
)
from experiments.bench.lan import Lan
from experiments.bench.site import interrupt_on_sigterm
from experiments.bench.table import table, verdict, write

DOWN_S = 2.0

GATEWAY_CORES = 0.05
MESSAGES = 4800
MIN_EFFICIENCY = 0.7
"""Minimum rate of eight gateways, relative to eight times the rate of one."""

PI_CORES = 0.11
"""CPU limit of a machine of tables 4 and 6."""

SLOW_BROKER_CORES = 0.02
"""CPU limit of a distributed broker of table 5: 10 % of a Pi in the paper."""

PAPER_MS: dict[str, float] = {
    "4 single broker": 13871.2,
    "4 gamma": 14.6832,
    "5 areas, 1 broker": 294.35,
    "5 areas, 2 brokers": 127.05,
    "5 areas, 3 brokers": 46.75,
    "5 no areas, 1 broker": 14925.22,
    "5 no areas, 2 brokers": 1163.05,
    "5 no areas, 3 brokers": 118.92,
    "6 areas, 1 gateway": 11423.46,
    "6 areas, 2 gateways": 116.14,
    "6 areas, 3 gateways": 57.30,
    "6 areas, 4 gateways": 15.96,
    "6 no areas, 1 gateway": 11423.46,
    "6 no areas, 2 gateways": 233.15,
    "6 no areas, 3 gateways": 118.73,
    "6 no areas, 4 gateways": 42.65,
}


@dataclass(frozen=True)
class Fault:
    """Result of one run with a fault.

    Attributes:
        doubled: Messages delivered to a subscriber more than once.
        repeated: Copies that subscribers dropped because of a known id.
    """

    arm: str
    wanted: int
    lost: int
    doubled: int
    repeated: int
    mean_s: float
    p99_s: float
    longest_s: float


def add_broker(system: Federation) -> None:
    """Add a second broker for two areas."""
    system.start_broker(2)
    manager = f"mqtt://{system.lan.address('manager')}:{PORT}"
    url = f"mqtt://{system.lan.address('broker2')}:{PORT}"
    config = system.site.folder / "admin.toml"
    config.write_text(ALLOW_PLAIN)
    for area in AREAS[2:]:
        name = f"admin{area.replace('/', '')}"
        system.site.python(
            name, system.lan.namespace("clients"), "gateway_daemon", "admin",
            "--config", config, "--manager", manager, "add-broker", area, url,
        )  # fmt: skip
        system.site.wait_for_end(name, 30.0)


def kill_gateway(system: Federation) -> None:
    """Kill and restart a gateway daemon."""
    system.kill("daemon1")
    time.sleep(DOWN_S)
    system.start_daemon(1)


def kill_manager(system: Federation) -> None:
    """Kill and restart the Manager."""
    system.kill("manager")
    time.sleep(DOWN_S)
    system.start_manager()


FAULTS: dict[str, Callable[[Federation], None]] = {
    "nothing happens": lambda _: None,
    "a broker is added": add_broker,
    "a gateway is killed": kill_gateway,
    "the Manager is killed": kill_manager,
}


def run_fault(lan: Lan, arm: str, seconds: float) -> Fault:
    """Run one arm."""
    with Federation(lan, Shape(4, 1)) as system:
        start_clients(system, seconds, timeout_s=600.0, by_id=True)
        go(system)
        time.sleep(seconds / 3)
        FAULTS[arm](system)
        wait_for_result(system.site, "subscribers", 120 + 6 * seconds)
        received = system.site.result("subscribers")
    return Fault(
        arm, received["wanted"], received["lost"], received["doubled"],
        received["repeated"], received["mean_s"], received["p99_s"], received["max_s"],
    )  # fmt: skip


def report_faults(faults: list[Fault]) -> str:
    """Format the table."""
    head = (
        "in the middle",
        "wanted",
        "lost",
        "doubled",
        "dropped by id",
        "mean ms",
        "p99 ms",
        "max ms",
    )
    rows: list[list[object]] = [
        [f.arm, f.wanted, f.lost, f.doubled, f.repeated, f.mean_s * 1e3, f.p99_s * 1e3,
         f.longest_s * 1e3] for f in faults
    ]  # fmt: skip
    return table(head, rows)


def fault_bars(faults: list[Fault]) -> list[str]:
    """Check that no message is lost or duplicated."""
    return [verdict(f"{f.arm}: lost or doubled", f.lost + f.doubled, 0) for f in faults]


@dataclass(frozen=True)
class Growth:
    """Result of one run. CPU times are per published message.

    Attributes:
        per_s: Messages/s from the first publication to the last delivery.
        daemon_us: CPU time of the gateway daemons.
        own_us: CPU time of their own brokers.
        broker_us: CPU time of the distributed broker.
    """

    gateways: int
    has_areas: bool
    per_s: float
    daemon_us: float
    own_us: float
    broker_us: float
    lost: int


def run_growth(lan: Lan, gateways: int, *, has_areas: bool, messages: int) -> Growth:
    """Flood one system."""
    shape = Shape(gateways, 1, has_areas, gateway_cores=GATEWAY_CORES)
    with Federation(lan, shape) as system:
        start_flood(system, messages)
        before = [system.cpu_s(kind) for kind in ("daemon", "own", "broker")]
        go(system)
        wait_for_result(system.site, "subscribers", 300.0)
        after = [system.cpu_s(kind) for kind in ("daemon", "own", "broker")]
        received = system.site.result("subscribers")
        load = system.site.result("load")
    each_us = [(b - a) / messages * 1e6 for a, b in zip(before, after, strict=True)]
    span_s = received["last_s"] - load["began_s"]
    return Growth(gateways, has_areas, messages / span_s, *each_us, received["lost"])


def report_growth(runs: list[Growth]) -> str:
    """Format the table; the broker's limit is one core's capacity in messages/s."""
    one_per_s = baseline_per_s(runs) if runs else 1.0
    head = ("gateways", "areas", "messages/s", "x one", "daemons us", "own brokers us",
            "broker us", "broker's limit /s", "lost")  # fmt: skip
    rows: list[list[object]] = [
        [g.gateways, "yes" if g.has_areas else "no", g.per_s, g.per_s / one_per_s,
         g.daemon_us, g.own_us, g.broker_us, 1e6 / g.broker_us, g.lost]
        for g in runs
    ]  # fmt: skip
    return table(head, rows)


def growth_bars(runs: list[Growth]) -> list[str]:
    """Check that the rate grows nearly linearly with the number of gateways."""
    count = max((g.gateways for g in runs), default=0)
    return [
        verdict(
            f"{count} gateways : {count} x one, with areas",
            g.per_s / baseline_per_s(runs) / count, MIN_EFFICIENCY, at_most=False,
        )
        for g in runs if g.has_areas and g.gateways == count
    ]  # fmt: skip


def baseline_per_s(runs: list[Growth]) -> float:
    """Mean rate of one gateway, with and without areas: there they are one system."""
    return fmean(each.per_s for each in runs if each.gateways == 1)


@dataclass(frozen=True)
class Run:
    """Result of one run.

    Attributes:
        arm: Table of the paper, and the variant.
        share: Share of the expected messages that arrived in time.
        cpu_us: CPU time of all brokers and gateways per delivered message.
        wire_bytes: Bytes that they sent on the LAN per delivered message.
    """

    arm: str
    mean_s: float | None
    p50_s: float | None
    p99_s: float | None
    share: float
    lost: int
    doubled: int
    cpu_us: float
    wire_bytes: float
    late_load_s: float


def run(lan: Lan, arm: str, shape: Shape, seconds: float) -> Run:
    """Run one system under the paper's load."""
    with Federation(lan, shape) as system:
        start_clients(system, seconds, timeout_s=4 * seconds)
        before = system.cpu_s(), system.sent_bytes()
        go(system)
        wait_for_result(system.site, "subscribers", 6 * seconds + 60)
        used_s, sent = system.cpu_s() - before[0], system.sent_bytes() - before[1]
        received = system.site.result("subscribers")
        load = system.site.result("load")
    count = max(1, received["received"])
    return Run(
        arm, received["mean_s"], received["p50_s"], received["p99_s"],
        received["received"] / received["wanted"], received["lost"],
        received["doubled"], used_s / count * 1e6, sent / count, load["latest_s"],
    )  # fmt: skip


def arms(quick: bool) -> dict[str, Shape]:
    """Return the systems to run, by table and variant."""
    pi, slow = PI_CORES, SLOW_BROKER_CORES
    found = {
        "4 single broker": Shape(0, broker_cores=pi),
    }
    if not quick:  # same system as "6 areas, 4 gateways"
        found["4 gamma"] = Shape(4, gateway_cores=pi, broker_cores=pi)
    for has_areas, label in ((True, "areas"), (False, "no areas")):
        for count in (1, 3) if quick else (1, 2, 3):
            if has_areas or not quick:
                name = f"5 {label}, {count} broker{'s' if count > 1 else ''}"
                found[name] = Shape(4, count, has_areas, None, slow)
        for count in (4,) if quick else (1, 2, 3, 4):
            name = f"6 {label}, {count} gateway{'s' if count > 1 else ''}"
            found[name] = Shape(count, 1, has_areas, pi, pi)
    return found


def report(runs: list[Run]) -> str:
    """Format the table, with the paper's means beside ours."""
    head = (
        "arm", "mean ms", "p50 ms", "p99 ms", "paper ms", "single : this", "paper's",
        "share", "lost", "doubled", "CPU us", "B", "load late ms",
    )  # fmt: skip
    single = next((r.mean_s for r in runs if r.arm == "4 single broker"), None)
    rows: list[list[object]] = []
    for r in runs:
        paper = PAPER_MS[r.arm]
        rows.append([
            r.arm, *_ms(r.mean_s, r.p50_s, r.p99_s), paper,
            single / r.mean_s if single and r.mean_s else None,
            PAPER_MS["4 single broker"] / paper, r.share, r.lost, r.doubled, r.cpu_us,
            r.wire_bytes, r.late_load_s * 1e3,
        ])  # fmt: skip
    return table(head, rows)


def _ms(*times_s: float | None) -> list[float | None]:
    return [None if s is None else s * 1e3 for s in times_s]


def bars(runs: list[Run]) -> list[str]:
    """Check that areas are never slower, and that more machines reduce the delay."""
    mean = {r.arm: r.mean_s or float("inf") for r in runs}
    found = []
    for arm, ours in mean.items():
        other = arm.replace(" areas", " no areas").replace(" no no", " no")
        # A single gateway serves all clients in both cases.
        if other != arm and other in mean and not arm.endswith("1 gateway"):
            ratio = ours / mean[other]
            found.append(verdict(f"{arm} : without", ratio, 1.1))
    for kind in ("5 areas", "5 no areas", "6 areas", "6 no areas"):
        row = [value for arm, value in mean.items() if arm.startswith(f"{kind},")]
        for number, (few, more) in enumerate(pairwise(row), 1):
            found.append(verdict(f"{kind}, more machines {number}", more / few, 1.1))
    return found


def draw(out: Path, runs: list[Run], growth: list[Growth]) -> None:
    """Draw the means beside the paper's, and the rate by the number of gateways."""
    counts = sorted({g.gateways for g in growth})
    rates = {(g.gateways, g.has_areas): g.per_s for g in growth}
    chart.lines(
        out / "gamma_growth.png", "Messages/s by gateways, each a twentieth of a core",
        counts,
        {
            label: [rates.get((count, areas)) for count in counts]
            for areas, label in ((True, "areas"), (False, "no areas"))
        },
        "gateways", "messages/s",
    )  # fmt: skip
    chart.bars(
        out / "gamma.png", "Gamma: mean delay, ours and the paper's",
        [r.arm for r in runs],
        {
            "yamamori": [(r.mean_s or 0) * 1e3 for r in runs],
            "paper": [PAPER_MS[r.arm] for r in runs],
        },
        "ms",
    )  # fmt: skip


@click.command()
@click.option("--quick", is_flag=True, help="Short runs, fewer of them.")
@click.option("--only", default="", help="Arms whose names hold these words.")
@click.option("--out", type=click.Path(path_type=Path), default="out/experiments")
def main(quick: bool, only: str, out: Path) -> None:
    """Repeat the experiments of the Gamma paper."""
    interrupt_on_sigterm()
    seconds, messages = (3.0, MESSAGES // 3) if quick else (12.0, MESSAGES)
    with Lan(MACHINES) as lan:
        runs = [
            run(lan, _announce(arm), shape, seconds)
            for arm, shape in arms(quick).items()
            if only in arm
        ]
        growth = [
            run_growth(lan, count, has_areas=areas, messages=messages)
            for areas in ((True,) if quick else (True, False))
            for count in ((1, 4) if quick else (1, 2, 4, 8))
            if only in "growth" and _announce(f"growth, {count}, areas: {areas}")
        ]
        faults = [
            run_fault(lan, _announce(arm), seconds)
            for arm in (list(FAULTS)[1:3] if quick else FAULTS)
            if only in arm
        ]
    verdicts = bars(runs) + growth_bars(growth) + fault_bars(faults)
    draw(out, runs, growth)
    result: dict[str, Any] = {
        "runs": [asdict(r) for r in runs],
        "growth": [asdict(g) for g in growth],
        "faults": [asdict(f) for f in faults],
        "bars": verdicts,
    }
    tables = (report(runs), report_growth(growth), report_faults(faults))
    print("", *tables, sep="\n\n")
    print("", *verdicts, f"\n  {write(out, 'gamma', result)}", sep="\n")


def _announce(arm: str) -> str:
    print(f"  {arm} ...", flush=True)
    return arm


if __name__ == "__main__":
    main()

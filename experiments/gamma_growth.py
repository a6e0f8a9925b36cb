"""Scalability from one gateway to eight: messages/s in a flood.

Each gateway is limited to a twentieth of a core, so that one machine can run eight of
them and their clients. Every message passes one gateway to the distributed broker, and
returns to one subscriber of its area on each gateway that serves the area.
"""

from dataclasses import dataclass
from statistics import fmean

from experiments.bench.federation import (
    Federation,
    Shape,
    go,
    start_flood,
    wait_for_result,
)
from experiments.bench.lan import Lan
from experiments.bench.table import table, verdict

GATEWAY_CORES = 0.05
MESSAGES = 4800
MIN_EFFICIENCY = 0.7
"""Minimum rate of eight gateways, relative to eight times the rate of one."""


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

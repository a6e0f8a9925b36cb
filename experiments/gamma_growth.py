"""How the whole grows from one gateway to eight: messages/s in a flood.

Each gateway is a machine of a twentieth of a core, so that eight of them fit this
machine beside their clients. Every message crosses one gateway into the distributed
broker and comes back to one subscriber of its area on each gateway that serves it.
"""

from dataclasses import dataclass

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
LEAST_EFFICIENCY = 0.7
"""Of eight gateways: their rate by eight times that of one."""


@dataclass(frozen=True)
class Growth:
    """What one run showed.

    Attributes:
        per_s: Messages/s from the first published to the last delivered.
        daemon_us: CPU of the gateway daemons for each message published; likewise
            their own brokers, and the distributed one.
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
        wait_for_result(system.site, "ears", 300.0)
        after = [system.cpu_s(kind) for kind in ("daemon", "own", "broker")]
        heard, load = system.site.result("ears"), system.site.result("load")
    each_us = [(b - a) / messages * 1e6 for a, b in zip(before, after, strict=True)]
    span_s = heard["last_s"] - load["began_s"]
    return Growth(gateways, has_areas, messages / span_s, *each_us, heard["lost"])


def report_growth(runs: list[Growth]) -> str:
    """The table; the limit is what one second of a machine's CPU carries."""
    head = ("gateways", "areas", "messages/s", "x one", "daemons us", "own brokers us",
            "broker us", "broker's limit /s", "lost")  # fmt: skip
    rows: list[list[object]] = [
        [g.gateways, "yes" if g.has_areas else "no", g.per_s, g.per_s / _one(runs, g),
         g.daemon_us, g.own_us, g.broker_us, 1e6 / g.broker_us, g.lost]
        for g in runs
    ]  # fmt: skip
    return table(head, rows)


def growth_bars(runs: list[Growth]) -> list[str]:
    """Eight gateways carry nearly eight times what one does."""
    most = max((g.gateways for g in runs), default=0)
    return [
        verdict(
            f"{most} gateways : {most} x one, with areas",
            g.per_s / _one(runs, g) / most, LEAST_EFFICIENCY, at_most=False,
        )
        for g in runs if g.has_areas and g.gateways == most
    ]  # fmt: skip


def _one(runs: list[Growth], like: Growth) -> float:
    return next(r.per_s for r in runs if r.has_areas is like.has_areas)

"""What is lost and what comes twice while the whole changes or breaks under load.

Four gateways and the load of the Gamma paper, QoS 1 from publisher to subscriber, who
drops what comes again by its id as our client does. In
the middle of it a distributed broker is added by an administrator, a gateway daemon is
killed with kill -9 and comes back, or the Manager is.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from experiments.bench.federation import (
    AREAS,
    PORT,
    Federation,
    Shape,
    go,
    start_clients,
    wait_for_result,
)
from experiments.bench.lan import Lan
from experiments.bench.table import table, verdict

AWAY_S = 2.0


@dataclass(frozen=True)
class Fault:
    """What one run with a fault in its middle showed.

    Attributes:
        doubled: Messages that a subscriber was given twice.
        repeated: Copies that subscribers knew by their id and dropped.
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
    """A second broker takes over two areas."""
    system.start_broker(2)
    manager = f"mqtt://{system.lan.address('manager')}:{PORT}"
    url = f"mqtt://{system.lan.address('broker2')}:{PORT}"
    for area in AREAS[2:]:
        name = f"admin{area.replace('/', '')}"
        system.site.python(
            name, system.lan.namespace("clients"), "gateway_daemon", "admin",
            "--manager", manager, "add-broker", area, url,
        )  # fmt: skip
        system.site.wait_for_end(name, 30.0)


def kill_gateway(system: Federation) -> None:
    """A daemon dies and comes back."""
    system.kill("daemon1")
    time.sleep(AWAY_S)
    system.start_daemon(1)


def kill_manager(system: Federation) -> None:
    """The Manager dies and comes back."""
    system.kill("manager")
    time.sleep(AWAY_S)
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
        start_clients(system, seconds, most_s=600.0, by_id=True)
        go(system)
        time.sleep(seconds / 3)
        FAULTS[arm](system)
        wait_for_result(system.site, "ears", 120 + 6 * seconds)
        heard = system.site.result("ears")
    return Fault(
        arm, heard["wanted"], heard["lost"], heard["doubled"], heard["repeated"],
        heard["mean_s"], heard["p99_s"], heard["max_s"],
    )  # fmt: skip


def report_faults(faults: list[Fault]) -> str:
    """The table."""
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
    """Nothing is lost or doubled."""
    return [verdict(f"{f.arm}: lost or doubled", f.lost + f.doubled, 0) for f in faults]

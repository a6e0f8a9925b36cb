"""Lost and duplicated messages when the system changes or fails under load.

Four gateways and the load of the Gamma paper, QoS 1 from publisher to subscriber; the
subscribers drop repeated message ids, as our client does. During the run an
administrator adds a distributed broker, or a gateway daemon or the Manager is ended
with SIGKILL and restarted.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from experiments.bench.federation import (
    ALLOW_PLAIN,
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

DOWN_S = 2.0


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

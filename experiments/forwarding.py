"""``python -m experiments.forwarding``: capacity of one gateway process.

Publishers -> the gateway's Mosquitto -> the gateway daemon, which stores every message
on disk -> a distributed broker -> a store that sends receipts. 150-byte messages of
priority 1 or mixed, from plain clients (the gateway assigns message ids) or from nodes
(with message ids). The throughput is that of a flood; CPU time is that of the daemon
alone, because other programs share the machine. The delay is measured at a fixed rate,
also back to a subscriber at the gateway's own broker.

Source: Gamma (seed 000) section 5, for the pace and the size.
"""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from experiments.bench.gateway import (
    LOW_DELAY,
    NO_LIMITS,
    SUBSCRIPTION_LOG,
    start_daemon,
)
from experiments.bench.lan import Lan, cpu_s
from experiments.bench.site import Site, interrupt_on_sigterm
from experiments.bench.table import table, verdict, write
from experiments.bench.wire import CELL

PORT = 1883
MACHINES = ("gateway", "remote", "clients")
PUBLISHERS = 100
MIN_PER_S = 4000.0
MAX_LOCAL_P99_S = 0.050
PAPER_RATE = 10.0
IDLE_S = 4.0
"""Time for the gateway to receive the store's custody offer."""


@dataclass(frozen=True)
class Arm:
    """One variant.

    Attributes:
        name: Name in tables.
        priorities: Assigned to the publishers in turn.
        packs: Whether the messages are nodes' packs, with message ids.
        rate: Messages/s of each publisher; 0 is a flood.
        is_local: Whether a subscriber is connected to the gateway's own broker.
    """

    name: str
    priorities: tuple[int, ...] = (1,)
    packs: bool = False
    rate: float = 0.0
    is_local: bool = False


FLOOD = Arm("flood, priority 1")
ARMS = (
    FLOOD,
    Arm("flood, priorities 1-5", (1, 2, 3, 4, 5)),
    Arm("flood, nodes' packs", packs=True),
    Arm("flood, back to own clients", is_local=True),
    Arm("1000/s", (1, 2, 3, 4, 5), rate=PAPER_RATE),
    Arm("1000/s, back to own clients", (1, 2, 3, 4, 5), rate=PAPER_RATE, is_local=True),
)


@dataclass(frozen=True)
class Run:
    """Result of one run; None where no message arrived.

    Attributes:
        per_s: Messages/s, from the first publication to the last reception.
        cpu_us: CPU time of the gateway daemon per message, microseconds.
        cores: CPU seconds of the daemon per second.
    """

    arm: str
    per_s: float
    cpu_us: float
    cores: float
    mean_s: float | None
    p50_s: float | None
    p99_s: float | None
    lost: int
    doubled: int


def run(lan: Lan, arm: Arm, each: int) -> Run:
    """Run one arm with ``each`` messages of each publisher."""
    with Site(lan) as site:
        near, far = lan.namespace("gateway"), lan.namespace("remote")
        site.mosquitto("own", near, PORT, *NO_LIMITS, *LOW_DELAY, *SUBSCRIPTION_LOG)
        site.mosquitto("remote", far, PORT, *NO_LIMITS, *LOW_DELAY)
        start_daemon(site, near, PORT, (lan.address("remote"), PORT))
        _start_subscribers(site, arm, each)
        _start_load(site, arm, each)
        time.sleep(IDLE_S)
        pid = site.pid("gateway")
        before_s = cpu_s(pid)
        (site.folder / "go").touch()
        _wait_for(site.path("subscribers"), site)
        used_s = cpu_s(pid) - before_s
        site.wait_for_end("subscribers", 10.0)
        site.wait_for_words("load", "finished")
        sent, received = site.result("load"), site.result("subscribers")
    span_s = received["last_s"] - sent["began_s"]
    count = max(1, received["received"])
    return Run(
        arm.name, count / span_s, used_s / count * 1e6, used_s / span_s,
        received["mean_s"], received["p50_s"], received["p99_s"], received["lost"],
        received["doubled"],
    )  # fmt: skip


def _start_subscribers(site: Site[Lan], arm: Arm, each: int) -> None:
    where = "gateway" if arm.is_local else "remote"
    plan = site.folder / "subscribers.plan"
    plan.write_text(
        json.dumps([
            {
                "host": site.net.address(where), "port": PORT,
                "filters": ["/0/#", "/1/#", "/2/#", "/3/#"],
                "expects": list(range(PUBLISHERS)), "receipts": not arm.is_local,
            }
        ])
    )  # fmt: skip
    site.python(
        "subscribers", site.net.namespace("clients"), "experiments.bench.subscribers",
        "--plan", plan, "--each", each, "--quiet", 20,
        "--out", site.path("subscribers"),
    )  # fmt: skip
    site.wait_for_words("subscribers", "ready")


def _start_load(site: Site[Lan], arm: Arm, each: int) -> None:
    plan = site.folder / "load.plan"
    kinds = [arm.priorities[n % len(arm.priorities)] for n in range(PUBLISHERS)]
    plan.write_text(
        json.dumps([
            {
                "host": site.net.address("gateway"), "port": PORT,
                "topic": f"/forward{CELL}/{n // 10}/{n % 10}/pri{priority}",
                "priority": priority,
            }
            for n, priority in enumerate(kinds)
        ])
    )  # fmt: skip
    site.python(
        "load", site.net.namespace("clients"), "experiments.bench.traffic_generator",
        "--plan", plan, "--each", each, "--rate", arm.rate,
        *(["--packs"] if arm.packs else []),
        "--go", site.folder / "go", "--out", site.path("load"),
    )  # fmt: skip
    site.wait_for_words("load", "ready")


def _wait_for(path: Path, site: Site[Lan], timeout_s: float = 180.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not path.exists():
        if time.monotonic() > deadline_s or site.wait_for_end("subscribers", 0.0):
            raise TimeoutError(f"no result:\n{site.last_words()}")
        time.sleep(0.02)


def _report(runs: list[Run]) -> tuple[str, list[str]]:
    head = ("arm", "messages/s", "CPU us each", "cores", "mean ms", "p50 ms",
            "p99 ms", "lost", "doubled")  # fmt: skip
    rows: list[list[object]] = [
        [
            r.arm, r.per_s, r.cpu_us, r.cores,
            *(None if s is None else s * 1e3 for s in (r.mean_s, r.p50_s, r.p99_s)),
            r.lost, r.doubled,
        ]
        for r in runs
    ]  # fmt: skip
    bars = [verdict(f"{r.arm}: lost or doubled", r.lost + r.doubled, 0) for r in runs]
    for each in runs:
        if each.arm in {arm.name for arm in ARMS if not (arm.rate or arm.is_local)}:
            bars.append(
                verdict(f"{each.arm}: messages/s", each.per_s, MIN_PER_S, False)
            )
        if each.arm.startswith("1000/s, back"):
            bars.append(verdict("local p99 s", each.p99_s, MAX_LOCAL_P99_S))
    return table(head, rows), bars


@click.command()
@click.option("--quick", is_flag=True, help="Fewer messages.")
@click.option("--only", default="", help="Arms whose names hold these words.")
@click.option("--out", type=click.Path(path_type=Path), default="out/experiments")
def main(quick: bool, only: str, out: Path) -> None:
    """Measure the capacity of one gateway process."""
    interrupt_on_sigterm()
    runs: list[Run] = []
    with Lan(MACHINES) as lan:
        for arm in (arm for arm in ARMS if only in arm.name):
            print(f"  {arm.name} ...", flush=True)
            seconds = 5 if quick else 20
            flood = 100 if quick else 400
            each = round(arm.rate * seconds) if arm.rate else flood
            runs.append(run(lan, arm, each))
    text, bars = _report(runs)
    result: dict[str, Any] = {"runs": [asdict(each) for each in runs], "bars": bars}
    print(f"\n{text}\n", *bars, f"\n  {write(out, 'forwarding', result)}", sep="\n")


if __name__ == "__main__":
    main()

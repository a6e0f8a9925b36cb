"""``python -m experiments.forwarding``: what one gateway process carries.

Publishers -> the gateway's Mosquitto -> the gateway daemon, every message on its disk
-> a distributed broker -> a store that gives receipts. 150-byte messages, of priority
1 or mixed, of plain clients (the gateway names them) or of nodes (named already). The
rate is that of a flood; CPU is that of the daemon alone, as other work shares this
machine. The delay is at a pace, also back to a subscriber on the gateway's own broker.

Source: Gamma (seed 000) section 5, for the pace and the size.
"""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from experiments.bench.gateway import LOW_DELAY, NO_LIMITS, TELLS, start_daemon
from experiments.bench.lan import Lan, cpu_s
from experiments.bench.site import Site, interrupt_on_sigterm
from experiments.bench.table import table, verdict, write
from experiments.bench.wire import CELL

PORT = 1883
MACHINES = ("gateway", "remote", "clients")
PUBLISHERS = 100
LEAST_PER_S = 4000.0
MOST_LOCAL_P99_S = 0.050
PAPER_RATE = 10.0
IDLE_S = 4.0
"""The gateway has heard the store's offer by then."""


@dataclass(frozen=True)
class Arm:
    """What is tried.

    Attributes:
        name: For people.
        priorities: Given to the publishers in turn.
        packs: Whether nodes name their messages.
        rate: Of each publisher, 1/s; 0 is a flood.
        is_local: Whether a subscriber listens at the gateway's own broker.
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
    """What one run showed; None where nothing came.

    Attributes:
        per_s: Messages heard in a second, from the first published to the last heard.
        cpu_us: CPU of the gateway daemon for each message, microseconds.
        cores: CPU seconds of the daemon in a second.
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
    """Run one arm with so many messages of each publisher."""
    with Site(lan) as site:
        near, far = lan.namespace("gateway"), lan.namespace("remote")
        site.mosquitto("own", near, PORT, *NO_LIMITS, *LOW_DELAY, *TELLS)
        site.mosquitto("remote", far, PORT, *NO_LIMITS, *LOW_DELAY)
        start_daemon(site, near, PORT, (lan.address("remote"), PORT))
        _ears(site, arm, each)
        _load(site, arm, each)
        time.sleep(IDLE_S)
        pid = site.pid("gateway")
        before_s = cpu_s(pid)
        (site.folder / "go").touch()
        _wait_for(site.path("ears"), site)
        used_s = cpu_s(pid) - before_s
        site.wait_for_end("ears", 10.0)
        site.wait_for_words("load", "finished")
        sent, heard = site.result("load"), site.result("ears")
    span_s = heard["last_s"] - sent["began_s"]
    count = max(1, heard["heard"])
    return Run(
        arm.name, count / span_s, used_s / count * 1e6, used_s / span_s,
        heard["mean_s"], heard["p50_s"], heard["p99_s"], heard["lost"],
        heard["doubled"],
    )  # fmt: skip


def _ears(site: Site[Lan], arm: Arm, each: int) -> None:
    where = "gateway" if arm.is_local else "remote"
    plan = site.folder / "ears.plan"
    plan.write_text(
        json.dumps([
            {
                "host": site.net.address(where), "port": PORT,
                "filters": ["/0/#", "/1/#", "/2/#", "/3/#"],
                "hears": list(range(PUBLISHERS)), "receipts": not arm.is_local,
            }
        ])
    )  # fmt: skip
    site.python(
        "ears", site.net.namespace("clients"), "experiments.bench.ears",
        "--plan", plan, "--each", each, "--quiet", 20, "--out", site.path("ears"),
    )  # fmt: skip
    site.wait_for_words("ears", "ready")


def _load(site: Site[Lan], arm: Arm, each: int) -> None:
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
        "load", site.net.namespace("clients"), "experiments.bench.load",
        "--plan", plan, "--each", each, "--rate", arm.rate,
        *(["--packs"] if arm.packs else []),
        "--go", site.folder / "go", "--out", site.path("load"),
    )  # fmt: skip
    site.wait_for_words("load", "ready")


def _wait_for(path: Path, site: Site[Lan], timeout_s: float = 180.0) -> None:
    until_s = time.monotonic() + timeout_s
    while not path.exists():
        if time.monotonic() > until_s or site.wait_for_end("ears", 0.0):
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
                verdict(f"{each.arm}: messages/s", each.per_s, LEAST_PER_S, False)
            )
        if each.arm.startswith("1000/s, back"):
            bars.append(verdict("local p99 s", each.p99_s, MOST_LOCAL_P99_S))
    return table(head, rows), bars


@click.command()
@click.option("--quick", is_flag=True, help="Fewer messages.")
@click.option("--only", default="", help="Arms whose names hold these words.")
@click.option("--out", type=click.Path(path_type=Path), default="out/experiments")
def main(quick: bool, only: str, out: Path) -> None:
    """Measure what one gateway process carries."""
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
    told: dict[str, Any] = {"runs": [asdict(each) for each in runs], "bars": bars}
    print(f"\n{text}\n", *bars, f"\n  {write(out, 'forwarding', told)}", sep="\n")


if __name__ == "__main__":
    main()

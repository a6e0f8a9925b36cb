"""``python -m experiments.federation_priority``: P-MQTT's experiment through Gamma.

A client -> gateway a -> distributed broker -> gateway b -> a subscriber, every program
on a machine of its own, with a Manager; one of the four links is slow (`tc tbf`). The
load of the P-MQTT paper: 100 messages of priority 5 and 100 of priority 1 with 120
bytes at the same moment, of 200 clients; on a slow link of the client a node sends all
of them, as packs, which it deflates. Two further loads: 40 messages of each of the five
priorities; 20 messages of priority 5 that come a second after 180 of priority 1.

Three ways: plain Mosquittos connected by bridges; our programs without priorities in
the topics; the same with them. The mean delay of priority 5 divided by that of all
messages of the same burst is 0.5 in perfect order, and 1 in the order of arrival. A
queue behind a sorted one is sorted, too, so only the last load shows where a priority
is lost.

Source: P-MQTT (seed 001) section 4; Gamma (seed 000) section 3.
"""

import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import click

from experiments.bench import federation
from experiments.bench.chart import bars
from experiments.bench.federation import AREAS, CELL_BELOW, PORT, Federation
from experiments.bench.gateway import LOW_DELAY, NO_LIMITS
from experiments.bench.lan import Lan
from experiments.bench.net import Shape
from experiments.bench.priority_burst import message_name
from experiments.bench.site import Site, interrupt_on_sigterm
from experiments.bench.table import table, verdict, write

CELL: Final = AREAS[0] + CELL_BELOW
"""In the area of gateway a; the subscriber is at gateway b."""

MACHINES: Final = (
    "clients", "gateway1", "broker1", "gateway2", "subscriber", "manager",
)  # fmt: skip
LINKS: Final = {
    "client - gateway a": ("clients", "gateway1"),
    "gateway a - broker": ("gateway1", "broker1"),
    "broker - gateway b": ("broker1", "gateway2"),
    "gateway b - subscriber": ("gateway2", "subscriber"),
}
CLIENT_LINK: Final = "client - gateway a"
OURS: Final = (CLIENT_LINK, "gateway a - broker")
"""Links into which a queue of ours sends; a Mosquitto sends into the others."""

RATES_KBPS: Final = (500, 100, 50, 30)
LEVELS_KBPS: Final = 50
"""Rate of the rows with five priorities."""

TWO, FIVE = (5, 1), (5, 4, 3, 2, 1)
LOADS = TOGETHER, LEVELS, LATE = "together", "levels", "late"
"""The paper's; five priorities; priority 5 behind a backlog of priority 1."""

MESSAGES = 200
ARMS = PLAIN, SINGLE, PRIORITIES = "plain bridges", "no priorities", "priorities"
TOPICS: Final = {
    PLAIN: CELL,
    SINGLE: f"/forward{CELL}",
    PRIORITIES: f"/forward{CELL}/pri{{pri}}",
}
IDLE_S = 4.0
"""Time in which an uplink finds that its broker gives no receipts."""

PAUSE_S = 1.0
LATE_S, URGENT = 1.0, 20
"""How much later than the others so many urgent messages are published."""

LEARNT = 20
"""Messages of each priority at a new rate before the bursts that count."""

FAST = Shape(10_000_000)
WARM_UP_S = 60.0
MOST_WIRE_BYTES = 400
"""Bytes of a message on a link that are never reached, for the time limit."""

MOST_ORDER, MOST_LATE = 0.7, 0.3


@dataclass(frozen=True)
class Run:
    """Mean delays of one burst, in seconds.

    Attributes:
        load: One of `LOADS`.
        link: The slow link, a key of `LINKS`.
        by_priority: Mean delay of each priority.
        lost: Messages that did not arrive.
        wire_bytes: Bytes per message on the slow link, towards the subscriber.
    """

    load: str
    link: str
    kbps: int
    arm: str
    by_priority: dict[int, float]
    all_s: float
    last_s: float
    lost: int
    wire_bytes: float

    @property
    def high_s(self) -> float:
        """Mean delay of priority 5."""
        return self.by_priority[5]

    @property
    def order(self) -> float:
        """Mean delay of priority 5 divided by that of all messages."""
        return self.high_s / self.all_s


class Journey:
    """Clients and a subscriber of one system; publishes bursts and measures them."""

    def __init__(self, lan: Lan, site: Site[Lan], link: str, arm: str) -> None:
        self._site = site
        self._orders = site.folder / "orders"
        self._number = 0
        module, port = "experiments.bench.priority_burst", ("--port", PORT)
        site.python(
            "receiver", lan.namespace("subscriber"), module, "receive",
            "--host", lan.address("gateway2"), *port,
            "--filter", f"{AREAS[0]}/#", "--out", site.path("receiver"),
        )  # fmt: skip
        is_node = link == CLIENT_LINK and arm != PLAIN
        site.python(
            "sender", lan.namespace("clients"), module, "send",
            "--host", lan.address("gateway1"), *port,
            "--by", "uplink" if is_node else "plain",
            "--connections", 1 if link == CLIENT_LINK else MESSAGES,
            "--topic", TOPICS[arm], "--orders", self._orders,
            "--out", site.path("sender"),
        )  # fmt: skip
        for name in ("receiver", "sender"):
            site.wait_for_words(name, "ready")

    def burst(
        self, levels: Sequence[int], each: int, timeout_s: float
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Publish a burst; return when its messages were sent, and when they came."""
        return self._wait_for(self._publish(levels, each), timeout_s)

    def late_burst(
        self, backlog: int, urgent: int, timeout_s: float
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Publish messages of priority 1, and later some of 5; returns as `burst`."""
        wanted = self._publish((1,), backlog)
        time.sleep(LATE_S)
        return self._wait_for(wanted | self._publish((5,), urgent), timeout_s)

    def _publish(self, levels: Sequence[int], each: int) -> set[str]:
        self._number += 1
        number = self._number
        with self._orders.open("a") as file:
            file.write(" ".join(map(str, (number, each, *levels))) + "\n")
        return {message_name(number, p, n) for p in levels for n in range(each)}

    def _wait_for(
        self, wanted: set[str], timeout_s: float
    ) -> tuple[dict[str, float], dict[str, float]]:
        deadline_s = time.monotonic() + timeout_s
        while not wanted <= self._times("receiver").keys():
            if time.monotonic() > deadline_s:
                break
            time.sleep(0.1)
        sent, arrived = self._times("sender"), self._times("receiver")
        return {name: sent[name] for name in wanted}, arrived

    def _times(self, name: str) -> dict[str, float]:
        return self._site.result(name) if self._site.path(name).exists() else {}


@contextmanager
def bridges(lan: Lan) -> Iterator[Site[Lan]]:
    """Run three plain Mosquittos; the outer ones have a bridge to the middle."""
    with Site(lan) as site:
        options = (*NO_LIMITS, *LOW_DELAY)
        site.mosquitto("broker1", lan.namespace("broker1"), PORT, *options)
        for number, direction in ((1, "out"), (2, "in")):
            site.mosquitto(
                f"own{number}", lan.namespace(f"gateway{number}"), PORT, *options,
                f"connection bridge{number}",
                f"address {lan.address('broker1')}:{PORT}",
                f"topic # {direction} 1", "bridge_protocol_version mqttv311",
                "notifications false", "restart_timeout 1",
            )  # fmt: skip
        yield site


@contextmanager
def daemons(lan: Lan) -> Iterator[Site[Lan]]:
    """Run our Manager and two gateways, with a distributed broker."""
    with Federation(lan, federation.Shape(2)) as system:
        yield system.site


def measure(
    link: str, arm: str, rates: Sequence[int], loads: Sequence[str], bursts: int
) -> list[Run]:
    """Publish bursts over one slow link in one system, at several rates."""
    with Lan(MACHINES) as lan:
        lan.shape(*LINKS[link], FAST)  # all connections stand before the bursts
        with (bridges if arm == PLAIN else daemons)(lan) as site:
            journey = Journey(lan, site, link, arm)
            _warm_up(journey, site, arm)
            return [
                _run(lan, journey, (load, link, kbps, arm))
                for kbps in _learnt(lan, journey, link, rates)
                for _, load in itertools.product(range(bursts), loads)
                if load == TOGETHER or kbps == LEVELS_KBPS
            ]


def _learnt(
    lan: Lan, journey: Journey, link: str, rates: Sequence[int]
) -> Iterator[int]:
    """Set each rate, and let the uplinks learn it, before it is yielded."""
    for kbps in rates:
        lan.shape(*LINKS[link], Shape(kbps * 1000))
        journey.burst(TWO, LEARNT, _limit_s(kbps))
        yield kbps


def _warm_up(journey: Journey, site: Site[Lan], arm: str) -> None:
    if arm != PLAIN:
        site.wait_for_words("daemon2", "confirmed the subscription")
    time.sleep(IDLE_S)
    sent, arrived = journey.burst(TWO, 1, WARM_UP_S)
    if not sent.keys() <= arrived.keys():
        raise TimeoutError(f"{arm}: nothing arrives\n{site.last_words()}")


def _limit_s(kbps: int) -> float:
    return 20.0 + MESSAGES * MOST_WIRE_BYTES * 8 / (kbps * 1000)


def _run(lan: Lan, journey: Journey, about: tuple[str, str, int, str]) -> Run:
    load, link, kbps, _ = about
    time.sleep(PAUSE_S)
    machine, _ = LINKS[link]
    before = lan.bytes(machine, "slow")
    if load == LATE:
        times = journey.late_burst(MESSAGES - URGENT, URGENT, _limit_s(kbps))
    else:
        levels = TWO if load == TOGETHER else FIVE
        times = journey.burst(levels, MESSAGES // len(levels), _limit_s(kbps))
    return _judge(about, *times, lan.bytes(machine, "slow") - before)


def _judge(
    about: tuple[str, str, int, str],
    sent: dict[str, float],
    arrived: dict[str, float],
    wire_bytes: int,
) -> Run:
    delays_s = {n: arrived[n] - sent[n] for n in sent if n in arrived}
    if not delays_s:
        raise TimeoutError(f"{about}: nothing arrived")
    by_priority: dict[int, list[float]] = {}
    for name, delay_s in delays_s.items():
        by_priority.setdefault(int(name[0]), []).append(delay_s)
    means_s = {p: statistics.fmean(each) for p, each in sorted(by_priority.items())}
    return Run(
        *about, means_s, statistics.fmean(delays_s.values()), max(delays_s.values()),
        len(sent) - len(delays_s), wire_bytes / len(sent),
    )  # fmt: skip


def _of(runs: list[Run], load: str) -> list[Run]:
    return [run for run in runs if run.load == load]


def _grouped(runs: list[Run]) -> dict[tuple[str, int], dict[str, list[Run]]]:
    groups: dict[tuple[str, int], dict[str, list[Run]]] = {}
    for each in runs:
        groups.setdefault((each.link, each.kbps), {}).setdefault(each.arm, []).append(
            each
        )
    return groups


def _mean(runs: list[Run], what: str) -> float:
    return statistics.fmean(getattr(run, what) for run in runs)


def _ratio(arms: dict[str, list[Run]], arm: str, to: str, what: str) -> str:
    """Mean ratio with the least and the most of a burst."""
    base_s = _mean(arms[to], what)
    return _spread([getattr(run, what) / base_s for run in arms[arm]])


def _spread(each: Sequence[float]) -> str:
    return f"{statistics.fmean(each):.2f} ({min(each):.2f} to {max(each):.2f})"


def check(runs: list[Run]) -> list[str]:
    """Check the order on the links into which a queue of ours sends."""
    found = []
    for load, what, most in (
        (TOGETHER, "5 : all", MOST_ORDER),
        (LATE, "late 5 : plain", MOST_LATE),
    ):
        for (link, kbps), arms in _grouped(_of(runs, load)).items():
            ratio = _mean(arms[PRIORITIES], "high_s") / _mean(arms[PLAIN], "high_s")
            value = ratio if load == LATE else _mean(arms[PRIORITIES], "order")
            if link in OURS:
                found.append(verdict(f"{link}, {kbps} kbps: {what}", value, most))
    return found


def report(runs: list[Run]) -> str:
    """Format the table of the paper's load."""
    head = (
        "slow link", "5 plain s", "none s", "5 s", "1 s", "5 : plain", "all : plain",
        "none : plain", "5 : all", "B plain", "B", "lost",
    )  # fmt: skip
    rows: list[list[object]] = []
    for (link, kbps), arms in _grouped(runs).items():
        rows.append([
            f"{link}, {kbps} kbps",
            _mean(arms[PLAIN], "high_s"), _mean(arms[SINGLE], "all_s"),
            _mean(arms[PRIORITIES], "high_s"),
            statistics.fmean(run.by_priority[1] for run in arms[PRIORITIES]),
            _ratio(arms, PRIORITIES, PLAIN, "high_s"),
            _ratio(arms, PRIORITIES, PLAIN, "all_s"),
            _ratio(arms, SINGLE, PLAIN, "all_s"),
            _spread([run.order for run in arms[PRIORITIES]]),
            *(_mean(arms[arm], "wire_bytes") for arm in (PLAIN, PRIORITIES)),
            sum(run.lost for each in arms.values() for run in each),
        ])  # fmt: skip
    return table(head, rows)


def report_late(runs: list[Run]) -> str:
    """Format the mean delay of priority 5 behind a backlog."""
    head = ("slow link", *ARMS, "priorities, each run", "the backlog", "lost")
    rows: list[list[object]] = []
    for (link, kbps), arms in _grouped(runs).items():
        ours = arms[PRIORITIES]
        rows.append([
            f"{link}, {kbps} kbps",
            *(_mean(arms[arm], "high_s") for arm in ARMS),
            _spread([run.high_s for run in ours]),
            statistics.fmean(run.by_priority[1] for run in ours),
            sum(run.lost for each in arms.values() for run in each),
        ])
    return table(head, rows)


def report_levels(runs: list[Run]) -> str:
    """Format the mean delay of each of five priorities."""
    head = ("slow link", "way", *(f"priority {p}, s" for p in FIVE), "lost")
    rows: list[list[object]] = []
    for (link, kbps), arms in _grouped(runs).items():
        for arm, each in arms.items():
            means = (statistics.fmean(r.by_priority[p] for r in each) for p in FIVE)
            lost = sum(run.lost for run in each)
            rows.append([f"{link}, {kbps} kbps", arm, *means, lost])
    return table(head, rows)


def draw(path: Path, runs: list[Run]) -> None:
    """Draw the mean delays of priority 5 behind a backlog."""
    groups = _grouped(runs)
    labels = [f"{link}, {kbps} kbps" for link, kbps in groups]
    series = {
        arm: [_mean(arms[arm], "high_s") for arms in groups.values()] for arm in ARMS
    }
    title = f"{URGENT} urgent messages, {LATE_S:g} s behind {MESSAGES - URGENT} others"
    bars(path, title, labels, series, "mean delay, s")


@click.command()
@click.option("--quick", is_flag=True, help="One burst, 50 kbps only.")
@click.option("--bursts", type=int, default=3, show_default=True)
@click.option("--loads", type=click.Choice(LOADS), multiple=True, default=LOADS)
@click.option("--only", type=click.Choice(list(LINKS)), help="One slow link.")
@click.option("--out", type=click.Path(path_type=Path), default="out/experiments")
def main(
    quick: bool, bursts: int, loads: tuple[str, ...], only: str | None, out: Path
) -> None:
    """Measure the delay of each priority through a federation with one slow link."""
    interrupt_on_sigterm()
    rates = (LEVELS_KBPS,) if quick or TOGETHER not in loads else RATES_KBPS
    links = [only] if only else list(LINKS)
    runs: list[Run] = []
    for link, arm in itertools.product(links, ARMS):
        print(f"  {link}, {arm} ...", flush=True)
        runs += measure(link, arm, rates, loads, 1 if quick else bursts)
    for load, show in (
        (TOGETHER, report),
        (LEVELS, report_levels),
        (LATE, report_late),
    ):
        if load in loads:
            print(f"\n{show(_of(runs, load))}")
    verdicts = check(runs)
    if LATE in loads:
        draw(out / "federation_priority.png", _of(runs, LATE))
    result: dict[str, Any] = {"runs": [asdict(each) for each in runs], "bars": verdicts}
    print("", *verdicts, f"  {write(out, 'federation_priority', result)}", sep="\n")


if __name__ == "__main__":
    main()

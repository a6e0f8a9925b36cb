"""``python -m experiments.urgent_latency``: latency of an urgent message.

A backlog is sent, and 1.5 s later a message of priority 5 with 200 bytes. Three
senders on the same shaped link: a plain paho client, a Mosquitto bridge, and Yamamori's
queue and uplink. With Yamamori further urgent messages follow while the backlog drains,
each a sample; the others send in order, so one sample is enough.

In the cases a to c the broker's answers are delayed, the data are not; the others have
no added delay, and some let a burst pass at line speed. In the last ones the link
changes while the backlog drains, or two nodes share it. The physical limit for the
urgent message is one frame of the backlog on the wire, then its own. Time in which
nothing passes the link is not counted.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from edge_agent.uplink.in_flight import FlightLimits
from experiments.bench.chart import bars, lines
from experiments.bench.net import FAR_ADDRESS, FAR_ADDRESS_6, Net, Shape
from experiments.bench.sender import topic
from experiments.bench.site import Site, interrupt_on_sigterm
from experiments.bench.table import table, verdict, write
from experiments.bench.wire import SEGMENT_HEADER_BYTES, unavoidable_bytes
from gateway_daemon.ca.authority import Identity
from gateway_daemon.ca.store import AuthorityFolder

BACKLOG_BYTES = 1000
URGENT_BYTES = 200

PORT = 1883
RELAY_PORT = 1884
TLS_PORT = 8883
WINDOW_BYTES = FlightLimits().window_bytes
IDLE_S = 1.5
"""Time between the connection and the backlog, as on a node."""

CHANGE_S = 8.0
FAST = Shape(10_000_000)
CDF_S = [n * 0.02 for n in range(111)]


class Spans:
    """What a link could carry over time.

    Args:
        steps: Times and the rates from then on, in bytes per second.
    """

    def __init__(self, steps: Sequence[tuple[float, float]]) -> None:
        self._spans = [
            (start_s, end_s, rate)
            for (start_s, rate), (end_s, _) in pairwise([*steps, (float("inf"), 0.0)])
        ]

    def carried_bytes(self, until_s: float) -> float:
        """Bytes that it can have carried up to a time."""
        return sum(
            rate * (min(end_s, until_s) - start_s)
            for start_s, end_s, rate in self._spans
            if start_s < until_s
        )

    def time_of(self, size_bytes: float) -> float:
        """When it can have carried so many bytes."""
        for start_s, end_s, rate in self._spans:
            if size_bytes <= rate * (end_s - start_s):
                return start_s + size_bytes / rate
            size_bytes -= rate * (end_s - start_s)
        raise ValueError("the link is cut for ever")

    def cut_s(self, from_s: float, until_s: float) -> float:
        """Time between two others in which it carries nothing."""
        return sum(
            max(0.0, min(end_s, until_s) - max(start_s, from_s))
            for start_s, end_s, rate in self._spans
            if not rate
        )


@dataclass(frozen=True)
class Case:
    """A link and a backlog.

    Attributes:
        name: Name in tables.
        shape: The link.
        backlog: Messages of 1000 bytes.
        bar_s: Most an urgent message may take.
        goodput_bar: Least part of the link that the backlog must use.
        is_drained: Whether the run goes on until the backlog is gone.
        most_urgent: Most urgent messages behind the backlog.
        was_fast: Whether the link had 10 Mbps until 8 s before the backlog.
        is_tls: Whether the connection uses TLS.
        is_ipv6: Whether it uses IPv6.
        changes: Times after the backlog was put, and the link from then on; None for
            one that loses everything.
        senders: Names of the programs that send a part of the messages each.
    """

    name: str
    shape: Shape
    backlog: int
    bar_s: float
    goodput_bar: float = 0.85
    is_drained: bool = True
    most_urgent: int = 5
    was_fast: bool = False
    is_tls: bool = False
    is_ipv6: bool = False
    changes: tuple[tuple[float, Shape | None], ...] = ()
    senders: tuple[str, ...] = ("sender",)

    @property
    def limit_s(self) -> float:
        """Lower bound of the worst latency: a backlog frame, then its own."""
        wire = BACKLOG_BYTES + URGENT_BYTES
        wire += len(topic(False)) + len(topic(True)) + 2 * (7 + SEGMENT_HEADER_BYTES)
        shapes = [self.shape, *(shape for _, shape in self.changes if shape)]
        return wire / min(shape.rate_bytes_per_s for shape in shapes)

    @property
    def every_s(self) -> float:
        """Interval of the urgent messages."""
        return max(0.4, min(2.1, (self._drain_s - 2.0) / self.most_urgent))

    @property
    def urgent(self) -> int:
        """Urgent messages that fit into the drain, as many from each sender."""
        fitting = int((self._drain_s - 2.0) / (self.every_s * 1.2))
        nodes = len(self.senders)
        return max(1, min(self.most_urgent, fitting) // nodes) * nodes

    def spans(self, began_s: float, changed: Sequence[float]) -> Spans:
        """What the link could carry, with the times of its changes."""
        rates = [shape.rate_bytes_per_s if shape else 0.0 for _, shape in self.changes]
        steps = zip(changed, rates, strict=True)
        return Spans([(began_s, self.shape.rate_bytes_per_s), *steps])

    @property
    def _drain_s(self) -> float:
        planned = self.spans(0.0, [at_s for at_s, _ in self.changes])
        return planned.time_of(self.backlog * BACKLOG_BYTES)


A = Case("a", Shape(64_000, answer_delay_s=0.1), 100, 0.5)
B = Case("b", Shape(30_000, answer_delay_s=0.6), 60, 1.0)
C = Case("c", A.shape, 10_000, 0.5, is_drained=False)
MANY = 10
PLAIN = (
    Case("64 kbps", Shape(64_000), 100, 0.6, most_urgent=MANY),
    Case("30 kbps", Shape(30_000), 60, 1.0, most_urgent=MANY),
    Case("128 kbps", Shape(128_000), 200, 0.3, most_urgent=MANY),
    Case("500 kbps", Shape(500_000), 800, 0.3, most_urgent=MANY),
    Case("burst 16 kB", Shape(64_000, burst_bytes=16_000), 100, 3.0, most_urgent=MANY),
    Case("burst 64 kB", Shape(64_000, burst_bytes=64_000), 200, 9.0, most_urgent=MANY),
    Case("was 10 Mbps", Shape(64_000), 100, 0.6, most_urgent=MANY, was_fast=True),
)
"""Links without an added delay; the last three have 64 kbps."""

OTHER_TRANSPORTS = (
    replace(PLAIN[0], name="64 kbps, TLS", is_tls=True),
    replace(PLAIN[0], name="64 kbps, IPv6", is_ipv6=True),
)

CUT_BAR_S = 3.6
"""After a cut the uplink connects anew, which takes up to two seconds between attempts
and some round trips; in that time nothing is carried."""

CHANGING = (
    Case(
        "500 to 50 kbps", Shape(500_000), 760, 1.5, most_urgent=2 * MANY,
        changes=((10.0, Shape(50_000)),),
    ),
    Case(
        "50 to 500 kbps", Shape(50_000), 560, 0.8, most_urgent=2 * MANY,
        changes=((10.0, Shape(500_000)),),
    ),
    Case(
        "cut for 10 s", Shape(64_000), 100, CUT_BAR_S, 0.5, most_urgent=MANY,
        changes=((4.0, None), (14.0, Shape(64_000))),
    ),
    Case(
        "cut for 30 s", Shape(64_000), 100, CUT_BAR_S, 0.5, most_urgent=2 * MANY,
        changes=((4.0, None), (34.0, Shape(64_000))),
    ),
    Case(
        "two nodes", Shape(64_000), 100, 0.9, most_urgent=MANY,
        senders=("sender", "second"),
    ),
)  # fmt: skip
"""The bar after a step down leaves the time for what the faster link had in flight."""

ALL_CASES = (A, B, C, *PLAIN, *OTHER_TRANSPORTS, *CHANGING)


@dataclass(frozen=True)
class Arm:
    """One sender.

    Attributes:
        name: Name in tables.
        by: paho, bridge or uplink.
        window_bytes: Upper bound of the uplink's window.
        custody: When the uplink removes a message from its queue.
    """

    name: str
    by: str
    window_bytes: int = WINDOW_BYTES
    custody: str = "auto"


PAHO = Arm("paho holds the queue", "paho")
BRIDGE = Arm("mosquitto bridge", "bridge")
YAMAMORI = Arm("yamamori", "uplink")
PUBACK = replace(YAMAMORI, name="yamamori, PUBACK", custody="puback")
SWEEP = [
    replace(YAMAMORI, name=f"yamamori, window {n}", window_bytes=n)
    for n in (1500, 6000)
]


@dataclass(frozen=True)
class Run:
    """Result of one run; times in seconds.

    Attributes:
        urgent_s: Latency of each urgent message.
        last_s: From the hand-over to the arrival of the last message.
        goodput: Unavoidable bytes over what the link could carry until then.
        payload_share: Payload bytes over the same.
        busy: Bytes really sent over the same.
    """

    case: str
    arm: str
    urgent_s: list[float]
    last_s: float | None
    goodput: float | None
    payload_share: float | None
    busy: float | None


def run(net: Net, case: Case, arm: Arm) -> Run:
    """Run one arm through one case."""
    net.shape(FAST if case.was_fast else case.shape)
    net.settle()
    urgent = case.urgent if arm.by == "uplink" else 1
    with Site(net) as site:
        _far_side(site, case, arm, urgent)
        before_bytes = net.sent_bytes()
        _near_side(site, case, arm, urgent)
        if case.was_fast:
            site.wait_for_words("sender", "ready")
            net.shape(case.shape)
            before_bytes = net.sent_bytes()
        changed = _change_link(site, case) if case.changes else []
        site.wait_for_end("receiver", 60.0)
        wire_bytes = net.sent_bytes() - before_bytes
        arrived, handed = site.result("receiver"), {}
        for name in case.senders:
            handed |= site.result(name)
    return _judge(case, arm, handed, arrived, wire_bytes, changed)


def _change_link(site: Site[Net], case: Case) -> list[float]:
    """Change the link as planned while the backlog drains; return when."""
    site.wait_for_words("sender", "ready")
    began_s = time.monotonic() + IDLE_S
    changed = []
    for at_s, shape in case.changes:
        time.sleep(max(0.0, began_s + at_s - time.monotonic()))
        site.net.cut(is_cut=shape is None)
        if shape is not None:
            site.net.shape(shape)
        changed.append(time.monotonic())
    return changed


def _far_side(site: Site[Net], case: Case, arm: Arm, urgent: int) -> None:
    far = site.net.far
    listener = _tls_listener(site.folder) if case.is_tls else ()
    site.mosquitto(
        "remote", far, PORT, "max_queued_messages 0", "max_inflight_messages 0",
        *listener,
    )  # fmt: skip
    back_s = case.shape.answer_delay_s
    site.python(
        "relay", far, "experiments.bench.relay", "--listen", RELAY_PORT,
        "--to", f"127.0.0.1:{TLS_PORT if case.is_tls else PORT}", "--back", back_s,
    )  # fmt: skip
    site.wait_for_words("relay", "ready")
    site.python(
        "receiver", far, "experiments.bench.receiver", "--port", PORT,
        "--filter", "/forward/#", "--urgent", urgent,
        "--backlog", case.backlog if case.is_drained else 0,
        "--out", site.path("receiver"),
        *(["--receipts"] if arm.by == "uplink" and arm.custody == "auto" else []),
    )  # fmt: skip
    site.wait_for_words("receiver", "ready")


def _tls_listener(folder: Path) -> tuple[str, ...]:
    """Create an authority and a broker's certificate; return Mosquitto's lines."""
    authority = AuthorityFolder(folder / "ca", time.time)
    authority.create("experiment")
    made = authority.issue_with_key(
        Identity("broker", "remote", hosts=(FAR_ADDRESS,)), 86_400.0
    )
    return (
        f"listener {TLS_PORT}",
        f"certfile {made}",
        f"keyfile {made.with_suffix('.key')}",
    )


def _near_side(site: Site[Net], case: Case, arm: Arm, urgent: int) -> None:
    near = site.net.near
    host = FAR_ADDRESS_6 if case.is_ipv6 else FAR_ADDRESS
    port = RELAY_PORT
    if arm.by == "bridge":
        site.mosquitto(
            "local", near, PORT, "max_queued_messages 0", "connection up",
            f"address {host}:{port}", "topic # out 1",
            "bridge_protocol_version mqttv50",
        )  # fmt: skip
        host, port = "127.0.0.1", PORT
    for number, name in enumerate(case.senders):
        nodes = len(case.senders)
        site.python(
            name, near, "experiments.bench.sender",
            "--by", "uplink" if arm.by == "uplink" else "paho",
            "--host", host, "--port", port, "--number", number,
            "--backlog", case.backlog // nodes, "--backlog-bytes", BACKLOG_BYTES,
            "--urgent", urgent // nodes, "--urgent-bytes", URGENT_BYTES,
            "--every", case.every_s * nodes,
            "--idle", CHANGE_S if case.was_fast else IDLE_S,
            "--window-bytes", arm.window_bytes, "--custody", arm.custody,
            "--out", site.path(name),
            *(["--ca", site.folder / "ca/ca.pem"] if case.is_tls else []),
        )  # fmt: skip


def _judge(  # noqa: PLR0917 - what a run leaves behind
    case: Case,
    arm: Arm,
    handed: dict[str, float],
    arrived: dict[str, float],
    wire_bytes: int,
    changed: list[float],
) -> Run:
    urgent = [n for n in handed if n[0] == "u" and n in arrived]
    spans = case.spans(min(handed.values()), changed)
    urgent_s = [
        arrived[n] - handed[n] - spans.cut_s(handed[n], arrived[n]) for n in urgent
    ]
    if not case.is_drained or not set(handed) <= set(arrived):
        return Run(case.name, arm.name, urgent_s, None, None, None, None)
    last_s = max(arrived.values()) - min(handed.values())
    sizes = {"u": URGENT_BYTES, "b": BACKLOG_BYTES}
    needed = sum(unavoidable_bytes(topic(n[0] == "u"), sizes[n[0]]) for n in arrived)
    payload = sum(sizes[n[0]] for n in arrived)
    could = spans.carried_bytes(max(arrived.values()))
    return Run(
        case.name, arm.name, urgent_s, last_s,
        needed / could, payload / could, wire_bytes / could,
    )  # fmt: skip


def plan(is_quick: bool) -> list[tuple[Case, Arm]]:
    """Return the runs in order."""
    repeated = [YAMAMORI] * (1 if is_quick else 3)
    others = [] if is_quick else [PUBACK, *SWEEP]
    runs = [
        (case, arm) for case in (A, B) for arm in (PAHO, BRIDGE, *repeated, *others)
    ]
    runs += [(C, arm) for arm in repeated]
    runs += [(case, arm) for case in PLAIN for arm in (PAHO, BRIDGE, *repeated[:2])]
    more = (*OTHER_TRANSPORTS, *CHANGING)
    return runs + [(case, arm) for case in more for arm in repeated[:2]]


def _merged(runs: list[Run]) -> dict[tuple[str, str], list[Run]]:
    merged: dict[tuple[str, str], list[Run]] = {}
    for each in runs:
        merged.setdefault((each.case, each.arm), []).append(each)
    return merged


def _middle(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _row(case: Case, arm: str, runs: list[Run]) -> list[object]:
    urgent_s = [s for each in runs for s in each.urgent_s]
    return [
        f"{case.name}  {arm}",
        len(urgent_s),
        _middle([each.urgent_s[0] if each.urgent_s else None for each in runs]),
        _middle(list(urgent_s)),
        max(urgent_s, default=None),
        case.limit_s,
        _middle([each.last_s for each in runs]),
        *(
            _percent(_middle([getattr(each, share) for each in runs]))
            for share in ("goodput", "payload_share", "busy")
        ),
    ]


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.0%}"


def _report(runs: list[Run]) -> tuple[str, list[str]]:
    cases = {case.name: case for case in ALL_CASES}
    merged = _merged(runs)
    head = ("case, sender", "n", "at 1.5 s", "median s", "worst s", "limit s",
            "last s", "goodput", "payload", "busy")  # fmt: skip
    text = table(head, [_row(cases[c], arm, r) for (c, arm), r in merged.items()])
    verdicts = []
    for (name, arm), each in merged.items():
        if arm != YAMAMORI.name:
            continue
        urgent_s = [s for one in each for s in one.urgent_s]
        worst_s = max(urgent_s, default=None)
        verdicts.append(
            verdict(f"({name}) worst urgent, s", worst_s, cases[name].bar_s)
        )
        if cases[name].is_drained:
            goodput = _middle([one.goodput for one in each])
            verdicts.append(
                verdict(f"({name}) goodput", goodput, cases[name].goodput_bar, False)
            )
    return text, verdicts


def _draw(path: Path, runs: list[Run]) -> None:
    merged = _merged(runs)
    names = [case.name for case in ALL_CASES]
    series = {
        arm.name: [
            max(
                (s for r in merged.get((case, arm.name), []) for s in r.urgent_s),
                default=None,
            )
            for case in names
        ]
        for arm in (PAHO, BRIDGE, YAMAMORI)
    }
    bars(path, "Urgent message behind a backlog", names, series, "worst delay, s")
    delays = {
        name: sorted(
            s for r in merged.get((name, YAMAMORI.name), []) for s in r.urgent_s
        )
        for name in names
    }
    lines(
        path.with_stem(f"{path.stem}_cdf"),
        "Yamamori: delay of the urgent message by link",
        CDF_S,
        {
            name: [sum(s <= at for s in each) / len(each) for at in CDF_S]
            for name, each in delays.items()
            if each
        },
        "delay, s",
        "share of the messages",
    )


@click.command()
@click.option("--quick", is_flag=True, help="One run of each arm, no sweep.")
@click.option("--out", type=click.Path(path_type=Path), default="out/experiments")
@click.option("--only", help='One case, such as a or "30 kbps".')
def main(quick: bool, out: Path, only: str | None) -> None:
    """Measure the latency of an urgent message behind a backlog."""
    interrupt_on_sigterm()
    runs: list[Run] = []
    for case, arm in plan(quick):
        if only in {None, case.name}:
            print(f"  ({case.name}) {arm.name} ...", flush=True)
            with Net(has_ipv6=case.is_ipv6) as net:
                runs.append(run(net, case, arm))
    text, verdicts = _report(runs)
    _draw(out / "urgent_latency.png", runs)
    result: dict[str, Any] = {"runs": [asdict(each) for each in runs], "bars": verdicts}
    print(
        f"\n{text}\n",
        *verdicts,
        f"\n  {write(out, 'urgent_latency', result)}",
        sep="\n",
    )


if __name__ == "__main__":
    main()

"""``python -m experiments.gateway_cost``: CPU, memory and delay of two gateways.

Publisher -> Mosquitto of gateway a -> gateway a -> distributed broker -> gateway b ->
its Mosquitto -> subscriber, with a Manager, all on this machine. 150-byte messages of
QoS 1 come at a fixed rate from a plain client, every hundredth of priority 5 and from
another client; each gateway has a message on disk before it acknowledges it. Another
checkout is measured alternately with this one.

The bare loop is what storage alone costs: one thread that decodes the same packets at
the same rate and commits them to SQLite with fsync, twice, as two gateways do. As there
is nothing else to do, a commit has the messages that arrived during the last one.

CPU time is that of both daemons, from the first message to the last; it depends on
other programs on the machine less than delays do, but a busy one has cold caches.
"""

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import click

from demo.processes import free_port
from experiments.bench.gateway import LOW_DELAY, NO_LIMITS, SUBSCRIPTION_LOG
from experiments.bench.paced_traffic import Traffic, pace
from experiments.bench.resource_usage import cpu_s, read_usage
from experiments.bench.site import ROOT, Site, interrupt_on_sigterm
from experiments.bench.table import table, verdict, write
from spatial_mqtt import codec
from spatial_mqtt.transport import Publication

GATEWAYS: Final = ("a", "b")
AREA: Final = "/1/2/2/1/3"
TOPICS: Final = tuple(f"{AREA}/{place}" for place in range(10))
"""Topics in turn: the allowance of a gateway is 1,000 messages/s for each sender, which
for plain clients is the topic. At 6,000/s one topic would mostly be rejected."""

MESSAGE_BYTES: Final = 150
URGENT_EVERY: Final = 100
"""One message in so many has priority 5."""

MAX_CPU_S: Final = {100.0: 8.0, 500.0: 5.0, 1000.0: 4.0}
"""Targets for the CPU time of both daemons per 10,000 messages, by messages/s."""

MAX_RSS_MIB: Final = 45.0
MAX_MEAN_MS: Final = 10.0
MAX_P99_MS: Final = 40.0
MAX_URGENT_P99_MS: Final = 500.0
DELAY_RATE: Final = 1000.0
"""Messages/s to which the targets for the delay apply."""

WARM_UP_S: Final = 2.0
SETTLE_S: Final = 1.5
"""Time after the last message for the removal of acknowledged ones."""


@dataclass(frozen=True)
class Run:
    """Result of one version at one rate.

    Attributes:
        version: Name of the checkout, or of the bare loop.
        rate: Messages/s.
        reached: Messages/s that the publisher reached.
        sent: Number of messages.
        lost: Messages that did not arrive.
        doubled: Duplicates.
        cpu_s: CPU time of both daemons per 10,000 messages.
        threads: The same by thread name, those with the most first.
        idle_ms: CPU milliseconds per second of both daemons before the messages.
        rss_mib: Resident memory of the larger daemon.
        mean_ms: Mean delay.
        p99_ms: 99th percentile of the delay.
        urgent_p99_ms: The same of priority 5.
        load: Mean load of the machine in the last minute.
    """

    version: str
    rate: float
    reached: float
    sent: int
    lost: int
    doubled: int
    cpu_s: float
    threads: dict[str, float]
    idle_ms: float | None
    rss_mib: float | None
    mean_ms: float
    p99_ms: float
    urgent_p99_ms: float | None
    load: float


@contextmanager
def federation(checkout: Path) -> Iterator[tuple[Site[None], dict[str, int]]]:
    """Run a Manager and two gateways; yields the ports of the gateways' brokers."""
    with Site(None) as site:
        names = ("manager-broker", "distributed", *(f"own-{g}" for g in GATEWAYS))
        ports = {name: free_port() for name in names}
        for name, port in ports.items():
            log = SUBSCRIPTION_LOG if name.startswith("own-") else ()
            site.mosquitto(name, None, port, *NO_LIMITS, *LOW_DELAY, *log)
        urls = {name: f'"mqtt://127.0.0.1:{port}"' for name, port in ports.items()}
        manager = (
            f"[manager]\nbroker = {urls['manager-broker']}\n"
            f'data = "{site.folder}/manager"\n'
            f'[[broker]]\ntopic = "/"\nurl = {urls["distributed"]}\n'
        )
        _start(site, checkout, "manager", "manager", manager)
        for name in GATEWAYS:
            gateway = (
                f'[gateway]\nid = "{name}"\nbroker = {urls[f"own-{name}"]}\n'
                f"managers = [{urls['manager-broker']}]\n"
                f'data = "{site.folder}/{name}"\n'
            )
            _start(site, checkout, name, "run", gateway)
        for name in GATEWAYS:
            site.wait_for_words(name, f":{ports['distributed']} is up")
            # Until then it may still wait for an offer of receipts.
            site.wait_for_words(name, "gives no receipts")
        yield site, {name: ports[f"own-{name}"] for name in GATEWAYS}


def _start(
    site: Site[None], checkout: Path, name: str, command: str, config: str
) -> None:
    path = site.folder / f"{name}.toml"
    path.write_text(config)
    python = checkout / ".venv/bin/python"
    site.start(
        name, None, "env", f"--chdir={checkout}", f"PYTHONPATH={checkout}",
        str(python), "-m", "gateway_daemon", command, "--config", str(path),
    )  # fmt: skip


def run(version: str, checkout: Path, rate: float, seconds: float) -> Run:
    """Measure one version at one rate."""
    with federation(checkout) as (site, ports):
        traffic = Traffic(
            ports["a"],
            ports["b"],
            TOPICS,
            f"{AREA}/#",
            size_bytes=MESSAGE_BYTES,
            urgent_every=URGENT_EVERY,
        )
        # Other versions print other words when the broker has confirmed it.
        site.wait_for_words("b", f"{AREA}/#")
        time.sleep(SETTLE_S)
        pids = [site.pid(name) for name in GATEWAYS]
        traffic.send(round(rate * WARM_UP_S), rate)
        time.sleep(SETTLE_S)
        idle_ms = _idle_ms(pids, seconds / 4)
        before_s, threads_before = _cpu_s(pids), _threads(pids)
        sent = round(rate * seconds)
        arrivals = traffic.send(sent, rate)
        time.sleep(SETTLE_S)
        used_s, threads = _cpu_s(pids) - before_s, _threads(pids)
        rss = max(read_usage(pid).rss_bytes for pid in pids)
        traffic.close()
    by_thread = {
        name: round((used - threads_before.get(name, 0.0)) * 1e4 / sent, 2)
        for name, used in threads.items()
    }
    most = sorted(by_thread.items(), key=lambda item: -item[1])[:8]
    return Run(
        version, rate, arrivals.reached, sent, sent - len(arrivals.delays_ms),
        arrivals.doubled, used_s * 1e4 / sent, dict(most), idle_ms, rss / 2**20,
        *_mean_and_p99(arrivals.delays_ms), _mean_and_p99(arrivals.urgent_ms)[1],
        os.getloadavg()[0],
    )  # fmt: skip


def _cpu_s(pids: list[int]) -> float:
    return sum(map(cpu_s, pids))


def _idle_ms(pids: list[int], seconds: float) -> float:
    before_s = _cpu_s(pids)
    time.sleep(seconds)
    return (_cpu_s(pids) - before_s) / seconds * 1e3


def _threads(pids: list[int]) -> dict[str, float]:
    return {
        f"{gateway} {name}": used
        for gateway, pid in zip(GATEWAYS, pids, strict=True)
        for name, used in read_usage(pid).cpu_s.items()
    }


def _mean_and_p99(delays_ms: list[float]) -> tuple[float, float]:
    if not delays_ms:
        return float("nan"), float("nan")
    return sum(delays_ms) / len(delays_ms), delays_ms[len(delays_ms) * 99 // 100]


def run_bare_loop(rate: float, seconds: float, folder: Path) -> Run:
    """Measure the bare loop at a rate, storing each message twice."""
    sent = round(rate * seconds)
    publication = Publication(f"/forward{TOPICS[0]}", b"." * MESSAGE_BYTES)
    packet = codec.encode_publish(publication, publication.topic, None, 1)
    arrived: list[tuple[float, bytes]] = []
    is_more = threading.Event()

    def arrive() -> None:
        for _ in pace(sent, rate):
            arrived.append((time.monotonic(), packet))
            is_more.set()

    stores = [_open_store(folder / f"bare-{name}.db") for name in GATEWAYS]
    delays_ms: list[float] = []
    source = threading.Thread(target=arrive)
    before_s = time.thread_time()
    source.start()
    while len(delays_ms) < sent:
        is_more.wait()
        is_more.clear()
        batch, arrived[:] = arrived[:], []
        for db in stores:
            _store(db, [each for _, each in batch], len(delays_ms))
        now_s = time.monotonic()
        delays_ms += [(now_s - at_s) * 1e3 for at_s, _ in batch]
    used_s = time.thread_time() - before_s
    source.join()
    for db in stores:
        db.close()
    mean_ms, p99_ms = _mean_and_p99(sorted(delays_ms))
    return Run(
        "bare loop", rate, rate, sent, 0, 0, used_s * 1e4 / sent, {}, None, None,
        mean_ms, p99_ms, None, os.getloadavg()[0],
    )  # fmt: skip


def _open_store(path: Path) -> sqlite3.Connection:
    path.unlink(missing_ok=True)
    # The bare loop runs in one thread.
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("CREATE TABLE message (seq INTEGER PRIMARY KEY, topic TEXT, body BLOB)")
    return db


def _store(db: sqlite3.Connection, packets: list[bytes], first: int) -> None:
    rows = []
    for seq, packet in enumerate(packets, first):
        ((head, body),) = codec.split_packets(bytearray(packet))
        message = codec.decode_publish(head, body, 1)
        rows.append((seq, message.topic, message.payload))
    db.execute("BEGIN IMMEDIATE")
    db.executemany("INSERT INTO message VALUES (?, ?, ?)", rows)
    db.execute("COMMIT")


def _report(runs: list[Run]) -> tuple[str, list[str]]:
    head = ("version", "messages/s", "reached", "CPU s per 10,000", "mean ms",
            "p99 ms", "urgent p99 ms", "RSS MiB",
            "idle ms/s", "lost", "doubled", "load")  # fmt: skip
    rows = [
        [
            r.version, f"{r.rate:g}", f"{r.reached:.0f}", r.cpu_s, r.mean_ms, r.p99_ms,
            r.urgent_p99_ms, r.rss_mib, r.idle_ms, r.lost, r.doubled, r.load,
        ]
        for r in runs
    ]  # fmt: skip
    bars = []
    for r in (each for each in runs if each.version == "this"):
        name = f"{r.rate:g}/s"
        bars.append(verdict(f"{name}: lost or doubled", r.lost + r.doubled, 0))
        if r.rate in MAX_CPU_S:
            bars.append(verdict(f"{name}: CPU s", r.cpu_s, MAX_CPU_S[r.rate]))
        bars.append(verdict(f"{name}: RSS MiB", r.rss_mib, MAX_RSS_MIB))
        urgent_ms = r.urgent_p99_ms
        bars.append(verdict(f"{name}: urgent p99 ms", urgent_ms, MAX_URGENT_P99_MS))
        if r.rate == DELAY_RATE:
            bars.append(verdict(f"{name}: mean ms", r.mean_ms, MAX_MEAN_MS))
            bars.append(verdict(f"{name}: p99 ms", r.p99_ms, MAX_P99_MS))
    return table(head, rows), bars


@click.command()
@click.option("--rates", "rates", multiple=True, type=float, default=tuple(MAX_CPU_S))
@click.option("--seconds", default=20.0, show_default=True, help="Of each run.")
@click.option("--repeat", default=1, show_default=True, help="Runs of each version.")
@click.option(
    "--old", type=click.Path(path_type=Path, exists=True), help="Another checkout."
)
@click.option("--bare/--no-bare", default=True, help="Also measure the bare loop.")
@click.option("--out", type=click.Path(path_type=Path), default="out/experiments")
def main(  # noqa: PLR0917 - options
    rates: tuple[float, ...],
    seconds: float,
    repeat: int,
    old: Path | None,
    bare: bool,
    out: Path,
) -> None:
    """Measure what a message costs two gateways, beside another version."""
    interrupt_on_sigterm()
    versions = {"this": ROOT} | ({} if old is None else {"old": old.resolve()})
    runs: list[Run] = []
    out.mkdir(parents=True, exist_ok=True)
    for rate in rates:
        for _ in range(repeat):
            for name, checkout in versions.items():
                print(f"  {name}, {rate:g} messages/s ...", flush=True)
                runs.append(run(name, checkout, rate, seconds))
                print(f"    {runs[-1].cpu_s:.2f} s: {runs[-1].threads}", flush=True)
        if bare:
            runs.append(run_bare_loop(rate, seconds, out))
    text, bars = _report(runs)
    result: dict[str, Any] = {"runs": [asdict(each) for each in runs], "bars": bars}
    print(f"\n{text}\n", *bars, f"\n  {write(out, 'gateway_cost', result)}", sep="\n")


if __name__ == "__main__":
    main()

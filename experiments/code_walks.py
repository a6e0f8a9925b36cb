"""``python -m experiments.code_walks``: the code that a reading meets, step by step.

A walk follows one tip of a rain gauge, one message or the messages of one node through
real objects: driver, sampler, queue on disk, uplink at a Mosquitto, ingress and egress
of a gateway, an executor's part of decoding and of scoring. Counted are files and
functions of the product, and moves: calls in another file than the call before.
Libraries, waiting loops and other threads are not counted. The numbers are for reading
the code (docs/explanation/code.md), not a measure of speed.

Beside them stand those of the first survey, at commit 1798436, on the same terms. In
walk 4 both pass bytes to the gateway without its network client. The moves of walks 5
and 6 grow with the rows, which the survey did not state; they cannot be compared.
"""

import logging
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import pyarrow as pa
import pyarrow.parquet as pq

from backend_spark.scoring.arrow import Scorer
from backend_spark.scoring.rules import CellRules
from backend_spark.streaming.batches import DecodingWorker, result_files
from backend_spark.tables.delta_writer import create_tables
from backend_spark.tables.reader import HISTORY_SCHEMA, ROW_LOCATION
from backend_spark.tables.schemas import LOG, RECEIVED, SPARK_TABLES
from demo.processes import free_port
from edge_agent.queue.base import COMMIT_EVERY_PUT, Durability, MessageDraft
from edge_agent.queue.sqlite_queue import SqliteQueue
from edge_agent.sampler import NodeIdentity, Sampler
from edge_agent.sensors.base import Hardware
from edge_agent.sensors.registry import open_sensors, parse_sensors
from edge_agent.simulator.board import Board
from edge_agent.simulator.slope import Slope, SlopeSite, make_storm
from edge_agent.triage.engine import Triage
from edge_agent.uplink.in_flight import CustodyMode
from edge_agent.uplink.link_rate import RateLimiter
from edge_agent.uplink.scheduler import SenderProfile
from edge_agent.uplink.uplink import ACK_DELAY_S, IDLE_POLL_S, Uplink
from experiments.bench.site import ROOT, Site
from experiments.bench.table import table
from experiments.message_walk import Call, Recorder
from gateway_daemon.gateway.egress import Egress
from gateway_daemon.gateway.incoming import IdentityCheck, SenderRateLimit
from gateway_daemon.gateway.ingress import AdmissionChecks, Ingress
from service_runtime.crash_guard import make_crash_guard
from service_runtime.tls import Endpoint
from service_runtime.watchdog import LoopWatchdog, no_heartbeat
from slope_science.levels import Criteria
from spatial_mqtt import codec
from spatial_mqtt.cells import Cell
from spatial_mqtt.connection import Connection
from spatial_mqtt.directory import BrokerEntry, BrokerInfo, BrokerTable
from spatial_mqtt.senml import MessageId, Pack, Reading, encode_cbor
from spatial_mqtt.topics import ForwardTopic, cell_topic
from spatial_mqtt.transport import IncomingMessage, MessageHandler, Publication, Session

MAIN: Final = "MainThread"
START_S: Final = 1_750_000_200.0
STEP_S: Final = 600.0
STEPS: Final = 36
PIN: Final = 17
CELL: Final = Cell.at(33.56, 133.53)
HORIZON_S: Final = 60 * 86_400
SENSORS: Final[tuple[Mapping[str, Any], ...]] = (
    {"kind": "rain-gauge", "name": "rain", "pin": PIN},
    {"kind": "tilt", "name": "tilt", "device": 1},
    {"kind": "soil-moisture", "name": "soil", "channel": 0, "dry_v": 2.6, "wet_v": 1.2},
    {"kind": "wire", "name": "wire", "pin": 22},
    {"kind": "vibration", "name": "shock", "pin": 27},
)


class FirstSurvey(NamedTuple):
    """Counts of a walk at commit 1798436."""

    files: int
    functions: int
    moves: int


TIP: Final = "1 tip of the gauge, sample, put into the queue"
PUBLISH: Final = "2 queue, uplink, bytes of PUBLISH"
PUBACK: Final = "3 bytes of PUBACK, acknowledgement of the queue"
GATEWAY: Final = "4 bytes of PUBLISH, queue of the gateway, PUBACK and receipt"
SEGMENT: Final = "5 rows of the log, files of bronze, silver and messages"
LEVEL: Final = "6 rows of silver, rows of levels and sensors"
FIRST_SURVEY: Final = {
    TIP: FirstSurvey(43, 151, 99),
    PUBLISH: FirstSurvey(24, 87, 160),
    PUBACK: FirstSurvey(5, 22, 9),
    GATEWAY: FirstSurvey(35, 167, 107),
    SEGMENT: FirstSurvey(14, 72, 831),
    LEVEL: FirstSurvey(27, 214, 7991),
}


@contextmanager
def recording() -> Iterator[Recorder]:
    """Record the calls of this thread, and of those that are started meanwhile."""
    recorder = Recorder()
    recorder.is_on = True
    threading.setprofile(recorder)
    sys.setprofile(recorder)
    try:
        yield recorder
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        recorder.is_on = False


class SlopeClock:
    """Settable clock of a node.

    Attributes:
        now_s: Unix time.
    """

    speedup = 1.0

    def __init__(self) -> None:
        self.now_s = START_S

    def wall_s(self) -> float:
        return self.now_s

    def mono_s(self) -> float:
        return self.now_s - START_S

    def is_synchronised(self) -> bool:
        return True


class Node:
    """A node on a simulated slope in a storm, with its queue on disk.

    Args:
        folder: Folder of the queue.
        tables: Its sensors.
    """

    def __init__(self, folder: Path, tables: Sequence[Mapping[str, Any]]) -> None:
        settings = parse_sensors(tables)
        rain = make_storm("peaked", START_S, 10, 100)
        slope = Slope(rain, SlopeSite(start_s=START_S))
        self.board = Board(slope, settings, random.Random(1))  # noqa: S311 - noise of a chip
        self.clock = SlopeClock()
        self.queue = open_queue(folder, "node", Durability(window_s=1.0))
        self.board.advance(START_S)
        self.sensors = open_sensors(
            settings,
            Hardware(self.board.pin_factory, lambda _: None, buses=self.board.buses),
        )
        identity = NodeIdentity("n1", CELL, self.clock)
        self.sampler = Sampler(self.sensors, Triage(settings), self.queue, identity)

    def step(self) -> None:
        """Advance the slope by a step and sample all sensors."""
        self.clock.now_s += STEP_S
        self.board.advance(self.clock.now_s)
        self.sampler.sample()

    def close(self) -> None:
        """Close sensors and queue."""
        for sensor in self.sensors:
            sensor.close()
        self.queue.close()


def open_queue(
    folder: Path, name: str, durability: Durability = COMMIT_EVERY_PUT
) -> SqliteQueue:
    """A queue on disk with a budget of 10 MB."""
    path = folder / f"{name}.db"
    return SqliteQueue(str(path), "n1", "boot", 10_000_000, durability=durability)


Walk = list[list[Call]]
"""Calls of each thread of a walk."""


def walk_of_tip(folder: Path) -> Walk:
    """A closure of the gauge's switch, and the sample that counts it."""
    node = Node(folder, SENSORS[:1])
    for _ in range(3):
        node.step()
    node.clock.now_s += STEP_S
    node.board.pin_factory.now_s = node.clock.now_s
    pin = node.board.pin_factory.pin(PIN)
    with recording() as recorder:
        pin.hold(False)
        pin.release()
        node.sampler.sample()
    node.close()
    return list(recorder.calls.values())


def walks_of_uplink(site: Site[None]) -> tuple[Walk, Walk]:
    """A message from the queue to the broker, and the PUBACK of the broker."""
    endpoint, network = Endpoint("127.0.0.1", free_port(), tls=False), Recorder()
    site.mosquitto("broker", None, endpoint.port)
    subscriber = _subscribe(endpoint)
    queue = open_queue(site.folder, "uplink")
    profile = SenderProfile("n1", custody=CustodyMode.PUBACK)
    uplink = Uplink(queue, profile, Connection, RateLimiter(), time.monotonic)
    threading.setprofile(network)
    uplink.switch_to(endpoint)
    # The steps of `Uplink.run`, in this thread.
    while uplink.down_since_s is not None:
        uplink._run_events(IDLE_POLL_S)  # noqa: SLF001
    threading.setprofile(None)
    for seq in (1, 2):
        _exchange(uplink, queue, seq)
    network.is_on = True
    published, acknowledged = _exchange(uplink, queue, 3)
    network.is_on = False
    uplink.stop()
    subscriber.stop()
    queue.close()
    received = network.calls["paho-mqtt-client-n1"]
    while received[0].function != "BatchingClient.loop_read":
        received.pop(0)
    return [published], [
        _until("BatchingClient.loop_misc", received),
        _until("SqliteQueue.ack", acknowledged),
    ]


def _until(function: str, calls: Iterable[Call]) -> list[Call]:
    """Calls before the first one of a function."""
    return list(takewhile(lambda call: call.function != function, calls))


def _subscribe(endpoint: Endpoint) -> Connection:
    """A subscriber that is ready."""
    is_ready = threading.Event()
    handler = MessageHandler(lambda _: None, is_ready.set)
    subscriber = Connection(endpoint, Session("s", (("/forward/#", 1),)), handler)
    subscriber.start()
    is_ready.wait()
    return subscriber


def _exchange(
    uplink: Uplink, queue: SqliteQueue, seq: int
) -> tuple[list[Call], list[Call]]:
    """Send a message; the calls until PUBLISH, and those after PUBACK."""
    queue.put([make_draft(seq)])
    uplink._run_events(0.0)  # noqa: SLF001 - it sends only after all events
    with recording() as published:
        uplink._send_all()  # noqa: SLF001
    while not uplink._answers:  # noqa: SLF001
        time.sleep(0.01)
    with recording() as acknowledged:
        uplink._handle_answers()  # noqa: SLF001
        uplink._settle()  # noqa: SLF001
        time.sleep(ACK_DELAY_S)
        uplink._settle()  # noqa: SLF001
    return published.calls[MAIN], acknowledged.calls[MAIN]


def make_draft(seq: int) -> MessageDraft:
    """A routine message of a node."""
    pack = Pack(MessageId("n1", "b", seq), 1, START_S, (Reading("rain", "mm", 0.5),))
    topic = str(ForwardTopic(cell_topic(CELL), pack.priority))
    return MessageDraft(pack.priority, topic, lambda _id: encode_cbor(pack), pack.id)


class BrokerBytes:
    """The gateway's side of its own broker: encodes what the gateway would send.

    Attributes:
        sent: Packets.
        on_receipt: Called with a receipt.
    """

    is_up = True
    endpoint = Endpoint("127.0.0.1", 1883, tls=False)

    def __init__(self, on_receipt: Callable[[], object]) -> None:
        self.sent: list[bytes] = []
        self._on_receipt = on_receipt

    def start(self) -> None:
        """Connect to nothing."""

    stop = send_heartbeat = start

    def publish(self, publication: Publication) -> int:
        """Encode a PUBLISH."""
        self.sent.append(codec.encode_publish(publication, publication.topic, None, 1))
        if not publication.retain:
            self._on_receipt()
        return 1

    def acknowledge(self, *messages: IncomingMessage) -> Sequence[IncomingMessage]:
        """Encode the PUBACKs."""
        self.sent.append(codec.encode_pubacks([m.delivery[1] for m in messages]))
        return messages


def walk_of_gateway(folder: Path) -> Walk:
    """A message of priority 4 from its bytes to its PUBACK and its receipt."""
    clock, broker = time.monotonic, BrokerInfo("127.0.0.1", free_port())
    egress = Egress(
        lambda info: open_queue(folder, f"lane-{info.port if info else 0}"),
        lambda _broker, queue: Uplink(
            queue, SenderProfile("gw"), Connection, RateLimiter(), clock
        ),
        tls=False,
        watchdog=LoopWatchdog(clock),
    )
    egress.apply_table(BrokerTable(1, (BrokerEntry("/", broker),)))
    checks = AdmissionChecks(
        SenderRateLimit(100),
        IdentityCheck(folder / "impostors.jsonl", time.time, has_certificates=False),
        make_crash_guard(folder, "ingress").open(),
    )
    link: Any = BrokerBytes(lambda: ingress.stop())  # noqa: PLW0108 - made below
    ingress = Ingress("gw", lambda *_: link, egress, 3, clock, checks=checks)
    pack = Pack(MessageId("n1", "b", 1), 4, START_S, (Reading("rain", "mm", 0.5),))
    topic = str(ForwardTopic(cell_topic(CELL), pack.priority))
    publication = Publication(topic, encode_cbor(pack))
    received = bytearray(codec.encode_publish(publication, topic, None, 1))
    with recording() as recorder:
        for first, body in codec.split_packets(received):
            ingress.on_message(codec.decode_publish(first, body, 0))
        ingress.run(no_heartbeat)
    egress.close()
    return [_until("Ingress.stop", recorder.calls[MAIN])]


def walks_of_backend(folder: Path) -> tuple[Walk, Walk]:
    """Six hours of a node's messages to silver, and these to levels."""
    node = Node(folder, SENSORS)
    for _ in range(STEPS):
        node.step()
    messages = [
        {
            "received_at": round((START_S + STEP_S * at) * 1e6) + 2_000_000,
            "topic": message.topic,
            "payload": message.payload,
            "node": message.id.node,
            "boot": message.id.boot,
            "seq": message.id.seq,
            "pri": message.priority,
        }
        for at, message in enumerate(node.queue.lease(STEPS), 1)
    ]
    node.close()
    tables = folder / "tables"
    create_tables(tables, SPARK_TABLES)
    worker = DecodingWorker(tables, folder, frozenset(RECEIVED), 7, 600, HORIZON_S)
    rows = pa.Table.from_pylist(messages, schema=LOG)
    with recording() as decoded:
        results = pa.Table.from_batches(list(worker.process(rows.to_batches())))
    silver = [
        pq.read_table(tables / "silver" / part.file)
        for part in result_files(results, "silver")
    ]
    history = pa.concat_tables(silver).select(HISTORY_SCHEMA.names)
    places: Sequence[Any] = ["f"] * len(history), list(range(len(history)))
    for field, column in zip(ROW_LOCATION, places, strict=True):
        history = history.append_column(field, pa.array(column, field.type))
    cell = history["cell"][0].as_py()
    scorer = Scorer({cell: CellRules(Criteria.assumed_from(150.0))}, HORIZON_S, {})
    with recording() as scored:
        scorer.score(history)
    return [decoded.calls[MAIN]], [scored.calls[MAIN]]


def count(name: str, walk: Walk) -> tuple[object, ...]:
    """Counts of a walk, beside those of the first survey."""
    calls, first = [call for each in walk for call in each], FIRST_SURVEY[name]
    files, functions = len({call.file for call in calls}), len(set(calls))
    moves = sum(a.file != b.file for each in walk for a, b in pairwise(each))
    share = f"{100 * files / first.files:.0f} %"
    return (
        name,
        first.files,
        files,
        share,
        first.functions,
        functions,
        first.moves,
        moves,
    )


HEAD: Final = (
    "walk",
    "files then",
    "now",
    "",
    "functions then",
    "now",
    "moves then",
    "now",
)


@click.command()
@click.option(
    "--files", "names_files", is_flag=True, help="List the files of each walk."
)
def main(names_files: bool) -> None:
    """Walk, and print the counts."""
    logging.disable(logging.WARNING)
    with Site(None) as site:
        published, acknowledged = walks_of_uplink(site)
        decoded, scored = walks_of_backend(site.folder)
        walks = {
            TIP: walk_of_tip(site.folder),
            PUBLISH: published,
            PUBACK: acknowledged,
            GATEWAY: walk_of_gateway(site.folder),
            SEGMENT: decoded,
            LEVEL: scored,
        }
    click.echo(table(HEAD, [count(name, walk) for name, walk in walks.items()]))
    for name, walk in walks.items() if names_files else ():
        click.echo(f"\n{name}")
        calls = Counter(Path(call.file) for each in walk for call in each)
        for path, number in calls.items():
            click.echo(f"  {path.relative_to(ROOT)} {number}")


if __name__ == "__main__":
    main()

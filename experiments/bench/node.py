"""``python -m experiments.bench.node``: a node that samples a storm in fast motion.

``--by json`` publishes one JSON message per reading with paho; ``--by uplink`` puts one
SenML pack per sampling into a `SqliteQueue` that our `Uplink` drains. Prints ``up``,
sends the ``--warm`` samplings, prints ``begin``, sends the ``--count`` measured
samplings, and prints ``end`` when all of them are delivered.
"""

import itertools
import json
import logging
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Protocol

import click
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from edge_agent.queue.base import ExpiryPolicy
from edge_agent.queue.sqlite_queue import SqliteQueue
from edge_agent.sampler import make_draft
from edge_agent.uplink.link_rate import MINUTES_PER_DAY, RateLimiter, RatePeriod
from edge_agent.uplink.scheduler import SenderProfile
from edge_agent.uplink.uplink import Uplink
from experiments.bench.storm import CELL, INTERVAL_S, NODE, Sampling, storm
from service_runtime.tls import Endpoint, TlsFiles
from spatial_mqtt.connection import Connection
from spatial_mqtt.priority import Delivery, QosPolicy
from spatial_mqtt.senml import MessageId, Pack

SETTLE_S = 2.0
"""Receipts are batched for a second; the last TCP acknowledgement follows them."""

ABOVE_ALL_PRIORITIES = 6
PAHO = {"3.1.1": paho.MQTTv311, "5": paho.MQTTv5}


class Sender(Protocol):
    """Sends samplings to the broker."""

    def send(self, sampling: Sampling) -> None:
        """Send a sampling."""

    def is_delivered(self) -> bool:
        """Whether every message has been acknowledged."""


@dataclass(frozen=True)
class Plan:
    """How the samplings are sent.

    Attributes:
        priority: Priority of each message.
        every_s: Time between samplings; 0 sends all at once.
        count: Number of measured samplings.
        warm: Number of samplings before them.
        gather_s: Batching time of the uplink.
        qos: QoS of the uplink.
    """

    priority: int
    every_s: float
    count: int
    warm: int
    gather_s: float
    qos: int


@click.command()
@click.option("--by", type=click.Choice(["json", "uplink"]), required=True)
@click.option("--mqtt", type=click.Choice(list(PAHO)), default="3.1.1")
@click.option("--host", required=True)
@click.option("--port", type=int, required=True)
@click.option("--priority", type=int, required=True)
@click.option("--every", "every_s", type=float, required=True, help="Seconds.")
@click.option("--apart", "apart_s", type=float, default=0.0, help="JSON: seconds.")
@click.option("--gather", "gather_s", type=float, default=0.0, help="Seconds.")
@click.option("--qos", type=int, default=1, help="Of the uplink.")
@click.option("--count", type=int, required=True)
@click.option("--warm", type=int, required=True)
@click.option("--idle", "idle_s", type=float, default=0.0, help="Instead of samplings.")
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(  # noqa: PLR0913, PLR0917 - one for each option
    by: str,
    mqtt: str,
    host: str,
    port: int,
    priority: int,
    every_s: float,
    apart_s: float,
    gather_s: float,
    qos: int,
    count: int,
    warm: int,
    idle_s: float,
    out: Path,
) -> None:
    """Send samplings, and print when the measurement begins and ends."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    plan = Plan(priority, every_s, count, warm, gather_s, qos)
    sender: Sender
    if by == "json":
        sender = JsonSender(host, port, PAHO[mqtt], priority, apart_s)
    else:
        sender = UplinkSender(Endpoint(host, port), plan, out.with_suffix(".db"))
    print("up", flush=True)
    time.sleep(SETTLE_S)
    samplings = storm()
    _send(sender, itertools.islice(samplings, plan.warm), plan.every_s)
    print("begin", flush=True)
    time.sleep(SETTLE_S + idle_s)
    measured = itertools.islice(samplings, plan.count)
    if isinstance(sender, UplinkSender) and not plan.every_s:
        sender.fill(measured)
    _send(sender, measured, plan.every_s)
    print("end", flush=True)
    threading.Event().wait()


def _send(sender: Sender, samplings: Iterable[Sampling], every_s: float) -> None:
    """Send at a constant rate, then wait until all is delivered and the link idle."""
    due_s = time.monotonic()
    for sampling in samplings:
        sender.send(sampling)
        due_s += every_s
        time.sleep(max(0.0, due_s - time.monotonic()))
    while not sender.is_delivered():
        time.sleep(0.05)
    time.sleep(SETTLE_S)


class JsonSender:
    """One JSON message per reading at QoS 1, a typical implementation with paho.

    Args:
        host: Host of the broker.
        port: Port of the broker.
        protocol: paho's number of the MQTT version.
        priority: Priority of each message.
        apart_s: Time between the messages of a sampling; with 0 the kernel puts
            most of them into one segment.
    """

    def __init__(
        self,
        host: str,
        port: int,
        protocol: MQTTProtocolVersion,
        priority: int,
        apart_s: float,
    ) -> None:
        self._priority = priority
        self._apart_s = apart_s
        self._sent: list[paho.MQTTMessageInfo] = []
        up = threading.Event()
        self._client = paho.Client(
            CallbackAPIVersion.VERSION2, NODE, protocol=protocol
        )  # fmt: skip
        self._client.on_connect = lambda *_: up.set()
        self._client.connect(host, port)
        self._client.loop_start()
        if not up.wait(20):
            raise TimeoutError("no CONNACK")

    def send(self, sampling: Sampling) -> None:
        at = datetime.fromtimestamp(sampling.time_s, UTC)
        for reading in sampling.readings:
            message = {
                "id": f"{NODE}-{len(self._sent) + 1}",
                "time": at.isoformat(timespec="milliseconds"),
                "sensor": reading.name,
                "value": reading.value,
                "unit": reading.unit,
                "priority": self._priority,
            }
            data = json.dumps(message, separators=(",", ":"))
            topic = f"landslide/{NODE}/{reading.name}"
            self._sent.append(self._client.publish(topic, data, qos=1))
            time.sleep(self._apart_s)

    def is_delivered(self) -> bool:
        return all(info.is_published() for info in self._sent)


class UplinkSender:
    """One SenML pack per sampling, through our queue and uplink.

    The queue's clock is accelerated by the same factor as the samplings, so that the
    batching delay in simulated time is that of the field.
    """

    def __init__(self, endpoint: Endpoint, plan: Plan, path: Path) -> None:
        self._priority = plan.priority
        self._speed = INTERVAL_S / plan.every_s if plan.every_s else 1.0
        self._passed_s = 0.0
        self._is_closed = False
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        expiry = ExpiryPolicy(self._mono_s)
        self._queue = SqliteQueue(path, NODE, boot, 500_000_000, expiry=expiry)
        closed = [RatePeriod(0, MINUTES_PER_DAY, 0.0)]
        limiter = RateLimiter(None, closed, ABOVE_ALL_PRIORITIES, self._minute)
        policy = QosPolicy({plan.priority: Delivery(plan.qos)})
        profile = SenderProfile(NODE, qos_policy=policy, gather_s=plan.gather_s)
        connect = partial(Connection, tls=TlsFiles(allow_plain_mqtt=True))
        self._uplink = Uplink(self._queue, profile, connect, limiter, time.monotonic)
        threading.Thread(target=self._uplink.run, daemon=True).start()
        self._uplink.switch_to(endpoint)
        while self._uplink.down_since_s is not None:
            time.sleep(0.01)

    def send(self, sampling: Sampling) -> None:
        pack = Pack(
            id=MessageId(NODE, "-", 0),
            priority=self._priority,
            time_s=sampling.time_s,
            readings=sampling.readings,
            mono_s=sampling.mono_s,
            why=sampling.why if self._priority > 1 else None,
        )
        self._queue.put([make_draft(pack, CELL)])
        self._uplink.wake()

    def fill(self, samplings: Iterable[Sampling]) -> None:
        """Queue all samplings while the rate limiter's period is closed."""
        self._is_closed = True
        for sampling in samplings:
            self._passed_s += INTERVAL_S
            self.send(sampling)
        self._is_closed = False

    def is_delivered(self) -> bool:
        return not any(depth.rows for depth in self._queue.stats().depth.values())

    def _mono_s(self) -> float:
        return self._passed_s + time.monotonic() * self._speed

    def _minute(self) -> int | None:
        """Return a minute of the closed period, or None for no period."""
        return 0 if self._is_closed else None


if __name__ == "__main__":
    main()

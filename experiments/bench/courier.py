"""``python -m experiments.bench.courier``: hands over numbered messages at a pace.

``--by paho`` gives them to a paho client with a persistent session, which sends
again by itself; ``--by uplink`` puts them into a `SqliteQueue` that our `Uplink`
drains. It says ``ready``, ``handed`` and, when nothing is left to do, ``finished``.
"""

import json
import logging
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import click

from edge_agent.queue.base import MessageDraft
from edge_agent.queue.sqlite_queue import SqliteQueue
from edge_agent.uplink.publications import SenderProfile
from edge_agent.uplink.rate_limit import RateLimiter
from edge_agent.uplink.uplink import Uplink
from experiments.bench.consumer import connect, persistent
from experiments.bench.numbered import numbered
from experiments.bench.wire import CELL
from service_runtime.tls import Endpoint
from spatial_mqtt.connection import Connection
from spatial_mqtt.priority import Delivery, QosPolicy
from spatial_mqtt.senml import MessageId
from spatial_mqtt.topics import ForwardTopic

ME = "kochi-0001"
BOOT = "0ce93c39"

Way = tuple[Callable[[int], None], Callable[[], bool]]
"""Takes a message; tells whether all are delivered."""


@click.command()
@click.option("--by", type=click.Choice(["paho", "uplink"]), required=True)
@click.option("--qos", type=int, required=True)
@click.option("--priority", type=int, required=True)
@click.option("--host", required=True)
@click.option("--port", type=int, required=True)
@click.option("--count", type=int, required=True)
@click.option("--rate", type=float, required=True, help="Messages a second.")
@click.option("--bytes", "size_bytes", type=int, required=True)
@click.option("--begin", "begin_s", type=float, required=True, help="Monotonic time.")
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(  # noqa: PLR0913, PLR0917 - one for each option
    by: str,
    qos: int,
    priority: int,
    host: str,
    port: int,
    count: int,
    rate: float,
    size_bytes: int,
    begin_s: float,
    out: Path,
) -> None:
    """Hand over the messages, note when, and wait for their delivery."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    topic = str(ForwardTopic(CELL, priority))

    def payload(number: int, id_: MessageId) -> bytes:
        return numbered(number, priority, size_bytes, id_)

    endpoint = Endpoint(host, port)
    if by == "paho":
        hand, is_delivered = _by_paho(endpoint, topic, qos, payload)
    else:
        policy = QosPolicy({priority: Delivery(qos)})
        store = out.with_suffix(".db")
        hand, is_delivered = _by_uplink(endpoint, topic, policy, payload, store)
    if time.monotonic() > begin_s:
        raise TimeoutError("the link did not come up before the beginning")
    print("ready", flush=True)
    handed: dict[int, float] = {}
    for number in range(count):
        time.sleep(max(0.0, begin_s + number / rate - time.monotonic()))
        handed[number] = time.monotonic()
        hand(number)
    out.write_text(json.dumps(handed))
    print("handed", flush=True)
    while not is_delivered():
        time.sleep(0.05)
    print("finished", flush=True)
    threading.Event().wait()


def _by_paho(
    endpoint: Endpoint, topic: str, qos: int, payload: Callable[[int, MessageId], bytes]
) -> Way:
    client = persistent(ME)
    up = threading.Event()
    client.on_connect = lambda *_: up.set()
    connect(client, endpoint.host, endpoint.port)
    if not up.wait(20):
        raise TimeoutError("no CONNACK")
    counts = {"handed": 0, "answered": 0}

    def on_publish(*_: object) -> None:
        counts["answered"] += 1

    def hand(number: int) -> None:
        # paho keeps what it cannot send now, unless it is of QoS 0.
        data = payload(number, MessageId(ME, BOOT, number))
        client.publish(topic, data, qos)
        counts["handed"] += 1

    def is_delivered() -> bool:
        return qos == 0 or counts["answered"] >= counts["handed"]

    client.on_publish = on_publish
    return hand, is_delivered


def _by_uplink(
    endpoint: Endpoint,
    topic: str,
    policy: QosPolicy,
    payload: Callable[[int, MessageId], bytes],
    path: Path,
) -> Way:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    store = SqliteQueue(path, ME, boot, 500_000_000)
    sender = SenderProfile(ME, qos_policy=policy)
    uplink = Uplink(store, sender, Connection, RateLimiter(), time.monotonic)
    threading.Thread(target=uplink.run, daemon=True).start()
    uplink.switch_to(endpoint)
    while uplink.down_since_s is not None:
        time.sleep(0.01)

    def hand(number: int) -> None:
        priority = max(policy.by_priority)
        store.put([MessageDraft(priority, topic, lambda id_: payload(number, id_))])
        uplink.wake()

    def is_delivered() -> bool:
        return not any(depth.rows for depth in store.stats().depth.values())

    return hand, is_delivered


if __name__ == "__main__":
    main()

"""``python -m experiments.bench.numbered_publisher``: publish at a constant rate.

``--by paho`` uses a paho client with a persistent session and paho's own
retransmission; ``--by uplink`` puts the messages into a `SqliteQueue` that our `Uplink`
drains. Prints ``ready``, ``handed`` after the last message, and ``finished`` when all
messages are delivered.
"""

import json
import logging
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from edge_agent.queue.base import MessageDraft
from edge_agent.queue.sqlite_queue import SqliteQueue
from edge_agent.uplink.link_rate import RateLimiter
from edge_agent.uplink.scheduler import SenderProfile
from edge_agent.uplink.uplink import Uplink
from experiments.bench.consumer import connect, make_client
from experiments.bench.numbered_messages import encode_numbered
from experiments.bench.wire import CELL
from service_runtime.tls import Endpoint, TlsFiles
from spatial_mqtt.connection import Connection
from spatial_mqtt.priority import Delivery, QosPolicy
from spatial_mqtt.senml import MessageId
from spatial_mqtt.topics import ForwardTopic

NODE = "kochi-0001"
BOOT = "0ce93c39"

Publisher = tuple[Callable[[int], None], Callable[[], bool]]
"""Function that publishes a numbered message, and one that checks the delivery."""


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
    """Publish the messages, record when, and wait for their delivery."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    topic = str(ForwardTopic(CELL, priority))

    def payload(number: int, id_: MessageId) -> bytes:
        return encode_numbered(number, priority, size_bytes, id_)

    endpoint = Endpoint(host, port)
    if by == "paho":
        publish, is_delivered = _paho_publisher(endpoint, topic, qos, payload)
    else:
        policy = QosPolicy({priority: Delivery(qos)})
        store = out.with_suffix(".db")
        publish, is_delivered = _uplink_publisher(
            endpoint, topic, policy, payload, store
        )
    if time.monotonic() > begin_s:
        raise TimeoutError("the connection was not up before --begin")
    print("ready", flush=True)
    published_s: dict[int, float] = {}
    for number in range(count):
        time.sleep(max(0.0, begin_s + number / rate - time.monotonic()))
        published_s[number] = time.monotonic()
        publish(number)
    out.write_text(json.dumps(published_s))
    print("handed", flush=True)
    while not is_delivered():
        time.sleep(0.05)
    print("finished", flush=True)
    threading.Event().wait()


def _paho_publisher(
    endpoint: Endpoint, topic: str, qos: int, payload: Callable[[int, MessageId], bytes]
) -> Publisher:
    client = make_client(NODE)
    up = threading.Event()
    client.on_connect = lambda *_: up.set()
    connect(client, endpoint.host, endpoint.port)
    if not up.wait(20):
        raise TimeoutError("no CONNACK")
    counts = {"published": 0, "acknowledged": 0}

    def on_publish(*_: object) -> None:
        counts["acknowledged"] += 1

    def publish(number: int) -> None:
        # paho queues what it cannot send now, except at QoS 0.
        data = payload(number, MessageId(NODE, BOOT, number))
        client.publish(topic, data, qos)
        counts["published"] += 1

    def is_delivered() -> bool:
        return qos == 0 or counts["acknowledged"] >= counts["published"]

    client.on_publish = on_publish
    return publish, is_delivered


def _uplink_publisher(
    endpoint: Endpoint,
    topic: str,
    policy: QosPolicy,
    payload: Callable[[int, MessageId], bytes],
    path: Path,
) -> Publisher:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    store = SqliteQueue(path, NODE, boot, 500_000_000)
    sender = SenderProfile(NODE, qos_policy=policy)
    connect = partial(Connection, tls=TlsFiles(allow_plain_mqtt=True))
    uplink = Uplink(store, sender, connect, RateLimiter(), time.monotonic)
    threading.Thread(target=uplink.run, daemon=True).start()
    uplink.switch_to(endpoint)
    while uplink.down_since_s is not None:
        time.sleep(0.01)

    def publish(number: int) -> None:
        priority = max(policy.by_priority)
        store.put([MessageDraft(priority, topic, lambda id_: payload(number, id_))])
        uplink.wake()

    def is_delivered() -> bool:
        return not any(depth.rows for depth in store.stats().depth.values())

    return publish, is_delivered


if __name__ == "__main__":
    main()

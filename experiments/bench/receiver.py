"""``python -m experiments.bench.receiver``: record when each message arrives.

With ``--receipts`` it offers custody and sends receipts, as the ingest does; a receipt
names the messages that arrived within `RECEIPT_S`.
"""

import json
import queue
import time
from pathlib import Path

import click
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from experiments.bench.wire import id_of, name_of
from spatial_mqtt.custody import CustodyOffer, CustodyReceipt
from spatial_mqtt.topics import custody_topic, offer_topic

RECEIPT_S = 0.2
RECEIVER = "bench-receiver"


@click.command()
@click.option("--port", type=int, required=True)
@click.option("--host", default="127.0.0.1")
@click.option("--filter", "filter_", default="#")
@click.option("--qos", type=int, default=1)
@click.option("--urgent", type=int, required=True, help="How many to wait for.")
@click.option("--backlog", type=int, required=True, help="How many to wait for.")
@click.option("--receipts", is_flag=True, help="Offer and send receipts.")
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(  # noqa: PLR0913, PLR0917 - one for each option
    port: int,
    host: str,
    filter_: str,
    qos: int,
    urgent: int,
    backlog: int,
    receipts: bool,
    out: Path,
) -> None:
    """Record arrivals until all expected messages have arrived."""
    inbox: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
    client = _connect(host, port, filter_, qos, inbox)
    if receipts:
        offer = CustodyOffer(RECEIVER, ("/#",)).encode()
        client.publish(
            offer_topic(RECEIVER), offer, qos=1, retain=True
        ).wait_for_publish()
    print("ready", flush=True)
    arrivals: dict[str, float] = {}
    wanted = {"u": urgent, "b": backlog}
    while any(sum(n[0] == k for n in arrivals) < wanted[k] for k in wanted):
        batch = _batch(inbox, RECEIPT_S if receipts else 0.0)
        for at_s, data in batch:
            arrivals.setdefault(name_of(data), at_s)
        if receipts:
            _send_receipts(client, [data for _, data in batch])
        fresh = out.with_suffix(".new")
        fresh.write_text(json.dumps(arrivals))
        fresh.replace(out)
    client.disconnect()


def _connect(
    host: str,
    port: int,
    filter_: str,
    qos: int,
    inbox: "queue.SimpleQueue[tuple[float, bytes]]",
) -> paho.Client:
    subscribed: queue.SimpleQueue[None] = queue.SimpleQueue()
    client = paho.Client(CallbackAPIVersion.VERSION2, RECEIVER, protocol=paho.MQTTv5)

    def on_message(_client: paho.Client, _: object, message: paho.MQTTMessage) -> None:
        if not message.topic.startswith(("/custody", "custody")):
            inbox.put((time.monotonic(), bytes(message.payload)))

    client.on_message = on_message
    client.on_subscribe = lambda *_: subscribed.put(None)
    client.connect(host, port)
    client.loop_start()
    client.subscribe(filter_, qos)
    subscribed.get(timeout=20)
    return client


def _batch(
    inbox: "queue.SimpleQueue[tuple[float, bytes]]", gather_s: float
) -> list[tuple[float, bytes]]:
    batch = [inbox.get()]
    if gather_s > 0:
        time.sleep(gather_s)
    while not inbox.empty():
        batch.append(inbox.get())
    return batch


def _send_receipts(client: paho.Client, payloads: list[bytes]) -> None:
    ids = [id_ for data in payloads if (id_ := id_of(data)) is not None]
    for node in {each.node for each in ids}:
        receipt = CustodyReceipt.from_ids(i for i in ids if i.node == node).encode()
        client.publish(custody_topic(node), receipt, qos=1)


if __name__ == "__main__":
    main()

"""``python -m experiments.bench.consumer``: count the copies of each message.

A subscriber with a persistent session, which survives a restart of the broker if the
broker stores it; it subscribes again on every connection and removes no duplicates.
"""

import json
import threading
import time
from pathlib import Path

import click
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from experiments.bench.numbered_messages import decode_number

WEEK_S = 7 * 86_400
WRITE_S = 0.2


@click.command()
@click.option("--port", type=int, required=True)
@click.option("--filter", "filter_", required=True)
@click.option("--qos", type=int, required=True)
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(port: int, filter_: str, qos: int, out: Path) -> None:
    """Record for each message when it first arrived and how often it arrived."""
    arrivals: dict[int, tuple[float, int]] = {}
    changed = threading.Event()

    def on_message(_client: paho.Client, _: object, message: paho.MQTTMessage) -> None:
        number = decode_number(bytes(message.payload))
        first_s, times = arrivals.get(number, (time.monotonic(), 0))
        arrivals[number] = (first_s, times + 1)
        changed.set()

    def on_connect(client: paho.Client, *_: object) -> None:
        client.subscribe(filter_, qos)

    client = make_client("bench-consumer")
    client.on_message = on_message
    client.on_connect = on_connect
    client.on_subscribe = lambda *_: print("ready", flush=True)
    connect(client, "127.0.0.1", port)
    while True:
        changed.wait()
        changed.clear()
        fresh = out.with_suffix(".new")
        fresh.write_text(json.dumps(dict(arrivals)))
        fresh.replace(out)
        time.sleep(WRITE_S)


def make_client(client_id: str) -> paho.Client:
    """Return an MQTT 5 client that reconnects after 1 to 2 s."""
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id, protocol=paho.MQTTv5)
    client.reconnect_delay_set(1, 2)
    return client


def connect(client: paho.Client, host: str, port: int) -> None:
    """Connect with a session that the broker keeps for a week."""
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = WEEK_S
    client.connect(host, port, clean_start=False, properties=properties)
    client.loop_start()


if __name__ == "__main__":
    main()

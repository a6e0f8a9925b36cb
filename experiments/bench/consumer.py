"""``python -m experiments.bench.consumer``: counts how often each message arrives.

A careful subscriber: a persistent session that survives its broker's restarts if
the broker's does, subscribed again on every connection. It removes no duplicates.
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

from experiments.bench.numbered import number_of

WEEK_S = 7 * 86_400
WRITE_S = 0.2


@click.command()
@click.option("--port", type=int, required=True)
@click.option("--filter", "filter_", required=True)
@click.option("--qos", type=int, required=True)
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(port: int, filter_: str, qos: int, out: Path) -> None:
    """Note for each message when it came first, and how often it came."""
    arrivals: dict[int, tuple[float, int]] = {}
    changed = threading.Event()

    def on_message(_client: paho.Client, _: object, message: paho.MQTTMessage) -> None:
        number = number_of(bytes(message.payload))
        first_s, times = arrivals.get(number, (time.monotonic(), 0))
        arrivals[number] = (first_s, times + 1)
        changed.set()

    def on_connect(client: paho.Client, *_: object) -> None:
        client.subscribe(filter_, qos)

    client = persistent("bench-consumer")
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


def persistent(client_id: str) -> paho.Client:
    """A client that comes back soon."""
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id, protocol=paho.MQTTv5)
    client.reconnect_delay_set(1, 2)
    return client


def connect(client: paho.Client, host: str, port: int) -> None:
    """Connect to a session that outlives the connection."""
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = WEEK_S
    client.connect(host, port, clean_start=False, properties=properties)
    client.loop_start()


if __name__ == "__main__":
    main()

"""``python -m experiments.bench.forwarder``: a priority queue without flow control.

The idea of P-MQTT as a separate client: messages that arrive go onto a heap, the most
urgent is published first, and the window counts messages, not bytes.
"""

import heapq
import itertools
import threading

import click
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from spatial_mqtt.priority import LADDER
from spatial_mqtt.topics import ForwardTopic


@click.command()
@click.option("--near-port", type=int, required=True)
@click.option("--host", required=True)
@click.option("--port", type=int, required=True)
@click.option("--window", type=int, default=20, help="Messages in flight.")
def main(near_port: int, host: str, port: int, window: int) -> None:
    """Forward by priority, with a window of messages."""
    heap = MessageHeap(window)
    out = _client("forwarder-out", host, port)
    out.on_publish = lambda *_: heap.on_acknowledged()
    near = _client("forwarder-near", "127.0.0.1", near_port)
    near.on_message = lambda _client, _, message: heap.push(message)
    near.on_subscribe = lambda *_: print("ready", flush=True)
    near.subscribe("/forward/#", qos=1)
    while True:
        topic, data = heap.pop()
        out.publish(topic, data, qos=1)


class MessageHeap:
    """Priority queue: the most urgent message first, then the oldest; with a window."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._waiting: list[tuple[int, int, str, bytes]] = []
        self._order = itertools.count()
        self._in_flight = 0
        self._changed = threading.Condition()

    def push(self, message: paho.MQTTMessage) -> None:
        """Add a message."""
        forward = ForwardTopic.parse(message.topic)
        priority = forward.priority or LADDER.default
        entry = (-priority, next(self._order), forward.topic, bytes(message.payload))
        with self._changed:
            heapq.heappush(self._waiting, entry)
            self._changed.notify()

    def pop(self) -> tuple[str, bytes]:
        """Wait for the window; return topic and payload of the next message."""
        with self._changed:
            self._changed.wait_for(self._can_send)
            _, _, topic, data = heapq.heappop(self._waiting)
            self._in_flight += 1
        return topic, data

    def on_acknowledged(self) -> None:
        """Count a message as acknowledged."""
        with self._changed:
            self._in_flight -= 1
            self._changed.notify()

    def _can_send(self) -> bool:
        return bool(self._waiting) and self._in_flight < self._window


def _client(client_id: str, host: str, port: int) -> paho.Client:
    up = threading.Event()
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id)
    client.on_connect = lambda *_: up.set()
    client.connect(host, port)
    client.loop_start()
    if not up.wait(20):
        raise TimeoutError(f"no CONNACK from {host}:{port}")
    return client


if __name__ == "__main__":
    main()

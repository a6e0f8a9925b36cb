"""One gateway of the live overlay as a process, controlled by lines of JSON.

Input: ``["publish", id, priority]``, with a topic at the end for another one than
`TOPIC`, and ``["links"]``. Output: ``["received", id, at_s]``,
``["result", id, reached, is_complete]`` and ``["links", [[key, left, right], ...]]``.
"""

import argparse
import json
import os
import random
import sys
import threading
import time
from collections.abc import Collection
from queue import Empty, SimpleQueue

from gateway_daemon.overlay.gateway_node import OverlayNode
from gateway_daemon.overlay.keys import GatewayName
from gateway_daemon.overlay.messages import CarriedMessage, PublicationResult
from gateway_daemon.overlay.mqtt_transport import MqttTransport
from gateway_daemon.overlay.runner import OverlayConfig, OverlayRunner, ReceivedMessages
from service_runtime.tls import Endpoint
from service_runtime.watchdog import LoopWatchdog
from spatial_mqtt.connection import Connection
from spatial_mqtt.directory import BrokerInfo

TOPIC = "/3/1/2/0/1"
REPEAT_S = 1.0


class Gateway:
    """A gateway with standard input and output instead of clients."""

    def __init__(self, options: argparse.Namespace) -> None:
        broker = BrokerInfo("127.0.0.1", options.broker)
        name = GatewayName(options.place, broker, options.id)
        self.node = OverlayNode(str(name), random.Random(options.id).choice)  # noqa: S311 - chance
        self.commands: SimpleQueue[list[object]] = SimpleQueue()
        self._payload = os.urandom(options.payload)  # incompressible
        self._published: dict[str, tuple[int, str]] = {}
        self._repeat_at_s: dict[str, float] = {}
        self.live = OverlayRunner(
            OverlayConfig(name, (BrokerInfo("127.0.0.1", options.peer),), options.rate),
            self.node,
            lambda later: MqttTransport(
                options.id, Endpoint("127.0.0.1", options.broker), Connection, later
            ),
            self.store,
            watchdog=LoopWatchdog(time.monotonic),
        )
        self.live.source = self
        self.live.set_filters(frozenset({"/3/1/2/#"}))

    def store(self, received: ReceivedMessages) -> Collection[str]:
        """Report messages that the gateway would deliver to its clients."""
        for message, _ in received:
            write_event("received", message.id, time.monotonic())
        return ()

    def poll(self, now_s: float) -> None:
        """Execute commands, and publish again what did not reach all nodes."""
        for id_ in [i for i, due_s in self._repeat_at_s.items() if due_s <= now_s]:
            del self._repeat_at_s[id_]
            self._publish(id_)
        while True:
            try:
                command, *arguments = self.commands.get_nowait()
            except Empty:
                return
            if command == "publish":
                id_, priority = str(arguments[0]), int(str(arguments[1]))
                topic = str([TOPIC, *arguments[2:]][-1])
                self._published[id_] = priority, topic
                self._publish(id_)
            else:
                keys = self.node.joined_keys()
                links = [[k, *self.node.neighbours(k)] for k in keys]
                write_event("links", links)

    def on_result(self, result: PublicationResult) -> None:
        """Report a result; repeat the publication if it missed nodes."""
        write_event("result", result.message_id, result.reached, result.is_complete)
        if not result.is_complete or not result.reached:
            self._repeat_at_s[result.message_id] = time.monotonic() + REPEAT_S

    def _publish(self, id_: str) -> None:
        priority, topic = self._published[id_]
        self.live.publish(id_, priority, CarriedMessage(topic, self._payload))


def write_event(*fields: object) -> None:
    """Write an event as a line of JSON."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run the gateway until the end of the input."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--id", required=True)
    parser.add_argument("--place", default="")
    parser.add_argument("--broker", type=int, required=True)
    parser.add_argument("--peer", type=int, required=True)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--payload", type=int, default=100)
    gateway = Gateway(parser.parse_args())
    gateway.live.start()
    for line in sys.stdin:
        gateway.commands.put(json.loads(line))
        gateway.live.wake()
    gateway.live.stop()
    for thread in threading.enumerate():
        if thread.name == "overlay":
            thread.join()


if __name__ == "__main__":
    main()

"""One gateway of the live overlay as a process; lines of JSON in and out.

In: ``["publish", id, priority]`` and ``["links"]``. Out: ``["heard", id, at_s]``,
``["ended", id, reached, is_whole]`` and ``["links", [[key, left, right], ...]]``.
"""

import argparse
import json
import os
import random
import sys
import threading
import time
from queue import Empty, SimpleQueue

from gateway_daemon.overlay.gateway_node import (
    CarriedMessage,
    OverlayNode,
    PublicationResult,
)
from gateway_daemon.overlay.keys import GatewayName
from gateway_daemon.overlay.mqtt_transport import MqttTransport
from gateway_daemon.overlay.runner import OverlayConfig, OverlayRunner, ReceivedMessages
from service_runtime.tls import Endpoint
from service_runtime.watchdog import LoopWatchdog
from spatial_mqtt.connection import Connection
from spatial_mqtt.directory import BrokerInfo

TOPIC = "/3/1/2/0/1"
AGAIN_S = 1.0


class Gateway:
    """A gateway whose clients are the lines."""

    def __init__(self, asked: argparse.Namespace) -> None:
        broker = BrokerInfo("127.0.0.1", asked.broker)
        name = GatewayName(asked.place, broker, asked.id)
        self.node = OverlayNode(str(name), random.Random(asked.id).choice)  # noqa: S311 - chance
        self.commands: SimpleQueue[list[object]] = SimpleQueue()
        self._payload = os.urandom(asked.payload)  # nothing to deflate
        self._priorities: dict[str, int] = {}
        self._again: dict[str, float] = {}
        self.live = OverlayRunner(
            OverlayConfig(name, (BrokerInfo("127.0.0.1", asked.peer),), asked.rate),
            self.node,
            lambda later: MqttTransport(
                asked.id, Endpoint("127.0.0.1", asked.broker), Connection, later
            ),
            self.store,
            watchdog=LoopWatchdog(time.monotonic),
        )
        self.live.source = self
        self.live.set_filters(frozenset({"/3/1/2/#"}))

    def store(self, heard: ReceivedMessages) -> None:
        """What our clients hear."""
        for message, _ in heard:
            tell("heard", message.id, time.monotonic())

    def poll(self, now_s: float) -> None:
        """Do what was asked, and publish again what did not reach all."""
        for id_ in [i for i, due_s in self._again.items() if due_s <= now_s]:
            del self._again[id_]
            self._publish(id_)
        while True:
            try:
                what, *more = self.commands.get_nowait()
            except Empty:
                return
            if what == "publish":
                id_, priority = str(more[0]), int(str(more[1]))
                self._priorities[id_] = priority
                self._publish(id_)
            else:
                keys = self.node.joined_keys()
                links = [[k, *self.node.neighbours(k)] for k in keys]
                tell("links", links)

    def on_result(self, ended: PublicationResult) -> None:
        """Tell, and try again if somebody had to be given up, or nobody was there."""
        tell("ended", ended.message_id, ended.reached, ended.is_complete)
        if not ended.is_complete or not ended.reached:
            self._again[ended.message_id] = time.monotonic() + AGAIN_S

    def _publish(self, id_: str) -> None:
        self.live.publish(
            id_, self._priorities[id_], CarriedMessage(TOPIC, self._payload)
        )


def tell(*what: object) -> None:
    """One line out."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Serve until the end of the input."""
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

"""The part of a node that sends, without sensors."""

import threading
import time
from pathlib import Path

from edge_agent.queue.base import MessageDraft
from edge_agent.queue.sqlite_queue import SqliteQueue
from edge_agent.uplink.gateway_selection import (
    FailoverTimeouts,
    GatewaySelector,
    ManagedGateways,
)
from edge_agent.uplink.link_rate import RateLimiter
from edge_agent.uplink.scheduler import SenderProfile
from edge_agent.uplink.uplink import Uplink
from service_runtime.tls import Endpoint
from spatial_mqtt.client import fetch_retained
from spatial_mqtt.connection import Connection
from spatial_mqtt.senml import MessageId, Pack, Reading, encode_cbor
from spatial_mqtt.topics import ForwardTopic


class Node:
    """The real queue, uplink and gateway selection of a node, without sensors."""

    def __init__(self, manager: Endpoint, topic: str, folder: Path) -> None:
        self._topic = topic
        self.queue = SqliteQueue(folder / "node.db", "n1", "boot", 10_000_000)
        self.uplink = Uplink(
            self.queue, SenderProfile("n1"), Connection, RateLimiter(), time.monotonic
        )
        self._stop = threading.Event()
        selector = GatewaySelector(
            self.uplink,
            ManagedGateways(
                [manager],
                topic,
                folder / "gateways.json",
                lambda at, topic, s: fetch_retained(at, topic, "n1-probe", s),
                "n1",
            ),
            self._stop,
            time.monotonic,
            FailoverTimeouts(check_interval_s=2.0),
        )
        loops = (self.uplink.run, selector.run, selector.run_checks)
        self._threads = [threading.Thread(target=run, daemon=True) for run in loops]
        for thread in self._threads:
            thread.start()

    def put(self, priority: int) -> MessageId:
        def encode(message_id: MessageId) -> bytes:
            reading = Reading("rain", "mm", 0.5)
            return encode_cbor(Pack(message_id, priority, 1.7e9, (reading,)))

        topic = str(ForwardTopic(self._topic, priority))
        (message_id,) = self.queue.put([MessageDraft(priority, topic, encode)])
        self.uplink.wake()
        assert message_id is not None
        return message_id

    def is_empty(self) -> bool:
        return not self.queue.stats().leased and not self.queue.waiting_priorities()

    def stop(self) -> None:
        self._stop.set()
        self.uplink.stop()
        for thread in self._threads:
            thread.join()
        self.queue.close()

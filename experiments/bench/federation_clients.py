"""Publishers and subscribers of a federation of brokers, in one process.

Argument: a JSON object with the address of each client. Prints ``ready``, waits for a
line on stdin, and prints the number of messages that the subscribers received.
"""

import json
import sys
import threading
import time

from service_runtime.tls import Endpoint, TlsFiles
from spatial_mqtt.connection import Connection
from spatial_mqtt.transport import (
    BaseConnectionHandler,
    IncomingMessage,
    Publication,
    Session,
)

READY_TIMEOUT_S = 60.0
PROBE = "/probe"


class Client(BaseConnectionHandler):
    """One connection, of a subscriber (with filters) or a publisher.

    Attributes:
        received: Number of messages received, probes not included.
        probes: Topics of the probes received.
        ready: Set when the connection is up, and subscribed if there are filters.
    """

    def __init__(self, name: str, address: str, *filters: str) -> None:
        self.received = 0
        self.probes: set[str] = set()
        self.ready = threading.Event()
        self._has_filters = bool(filters)
        host, _, port = address.rpartition(":")
        session = Session(name, [(each, 0) for each in filters])
        self.connection = Connection(
            Endpoint(host, int(port)), session, self, TlsFiles(allow_plain_mqtt=True)
        )
        self.connection.start()

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        if not self._has_filters:
            self.ready.set()

    def on_message(self, message: IncomingMessage) -> None:
        if message.topic.endswith(PROBE):
            self.probes.add(message.topic)
        else:
            self.received += 1

    def on_subscribed(self) -> None:
        self.ready.set()


def wait_for_bridges(
    subscribers: list[Client], publishers: list[tuple[Client, str]], origins: int
) -> None:
    """Publish probes until every subscriber has one from each of ``origins`` topics."""
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while any(len(subscriber.probes) < origins for subscriber in subscribers):
        if time.monotonic() > deadline_s:
            raise SystemExit("a bridge did not come up")
        for publisher, topic in publishers:
            publisher.connection.publish(Publication(topic + PROBE, b"", qos=0))
        time.sleep(0.5)
    time.sleep(1.0)


def main() -> None:
    """Connect, publish on request, and count until no more messages arrive."""
    settings = json.loads(sys.argv[1])
    subscribers = [
        Client(f"subscriber{n}", address, "d/#")
        for n, address in enumerate(settings["subscribers"])
    ]
    publishers = [
        (Client(f"publisher{n}", address), topic)
        for n, (address, topic) in enumerate(settings["publishers"])
    ]
    for client in (*subscribers, *(publisher for publisher, _ in publishers)):
        if not client.ready.wait(READY_TIMEOUT_S):
            raise SystemExit("a client did not connect")
    wait_for_bridges(subscribers, publishers, settings["origins"])
    print("ready", flush=True)
    sys.stdin.readline()
    payload = bytes(settings["bytes"])
    for _ in range(settings["rounds"]):
        for publisher, topic in publishers:
            publisher.connection.publish(Publication(topic, payload, qos=0))
        time.sleep(settings["pause_s"])
    before = -1
    while before != (total := sum(client.received for client in subscribers)):
        before = total
        time.sleep(2.0)
    print(total, flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()

"""Publishers and subscribers of one federation, in one process on the clients' machine.

In, as JSON arguments: where each client is connected. Out: what the subscribers got.
"""

import json
import sys
import threading
import time

from service_runtime.tls import Endpoint
from spatial_mqtt.connection import Connection
from spatial_mqtt.transport import IncomingMessage, Publication, Session

READY_S = 60.0
PROBE = "/probe"


class Client:
    """One connection."""

    def __init__(self, name: str, address: str, *filters: str) -> None:
        self.got = 0
        self.probes: set[str] = set()
        self.ready = threading.Event()
        self._has_filters = bool(filters)
        host, _, port = address.rpartition(":")
        session = Session(name, [(each, 0) for each in filters])
        self.connection = Connection(Endpoint(host, int(port)), session, self)
        self.connection.start()

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        """See `ConnectionHandler`."""
        if not self._has_filters:
            self.ready.set()

    def on_down(self, reason: str) -> None:
        """See `ConnectionHandler`."""

    def on_message(self, message: IncomingMessage) -> None:
        """See `ConnectionHandler`."""
        if message.topic.endswith(PROBE):
            self.probes.add(message.topic)
        else:
            self.got += 1

    def on_published(self, token: int, refused: str | None) -> None:
        """See `ConnectionHandler`."""

    def on_subscribed(self) -> None:
        """See `ConnectionHandler`."""
        self.ready.set()


def probe(ears: list[Client], mouths: list[tuple[Client, str]], origins: int) -> None:
    """Wait until every subscriber is reached from every broker that it should be."""
    deadline_s = time.monotonic() + READY_S
    while any(len(ear.probes) < origins for ear in ears):
        if time.monotonic() > deadline_s:
            raise SystemExit("a bridge did not come up")
        for mouth, topic in mouths:
            mouth.connection.publish(Publication(topic + PROBE, b"", qos=0))
        time.sleep(0.5)
    time.sleep(1.0)


def main() -> None:
    """Connect, say so, wait for a line, publish, and count until nothing comes."""
    asked = json.loads(sys.argv[1])
    ears = [Client(f"ear{n}", at, "d/#") for n, at in enumerate(asked["subscribers"])]
    mouths = [
        (Client(f"mouth{n}", at), topic)
        for n, (at, topic) in enumerate(asked["publishers"])
    ]
    for client in (*ears, *(mouth for mouth, _ in mouths)):
        if not client.ready.wait(READY_S):
            raise SystemExit("a client did not connect")
    probe(ears, mouths, asked["origins"])
    print("ready", flush=True)
    sys.stdin.readline()
    payload = bytes(asked["bytes"])
    for _ in range(asked["rounds"]):
        for mouth, topic in mouths:
            mouth.connection.publish(Publication(topic, payload, qos=0))
        time.sleep(asked["pause_s"])
    before = -1
    while before != (total := sum(ear.got for ear in ears)):
        before = total
        time.sleep(2.0)
    print(total, flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()

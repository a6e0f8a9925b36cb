"""The front at a real broker."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Broker, wait_until

from edge_agent.queue.memory import MemoryQueue
from edge_agent.uplink.publications import SenderProfile
from edge_agent.uplink.rate_limit import RateLimiter
from edge_agent.uplink.uplink import Uplink
from gateway_daemon.gateway.admission import IdentityCheck, SenderRateLimit
from gateway_daemon.gateway.egress import Egress
from gateway_daemon.gateway.ingress import AdmissionChecks, Ingress
from service_runtime.watchdog import LoopWatchdog, no_heartbeat
from spatial_mqtt.connection import Connection
from spatial_mqtt.transport import NO_SUBSCRIBERS, IncomingMessage, Publication, Session

pytestmark = pytest.mark.broker


class Client:
    """Publishes, and hears whether somebody took it."""

    def __init__(self, broker: Broker) -> None:
        """Connect."""
        self.answers: dict[int, str | None] = {}
        self.is_ready = threading.Event()
        self._connection = Connection(broker.endpoint, Session("client"), self)
        self._connection.start()
        assert self.is_ready.wait(60)

    def says(self, topic: str) -> str | None:
        """What the broker answers."""
        token = self._connection.publish(Publication(topic, b"x"))
        wait_until(lambda: token in self.answers)
        return self.answers[token or 0]

    def stop(self) -> None:
        """Leave."""
        self._connection.stop()

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        """See `ConnectionHandler`."""
        self.is_ready.set()

    def on_down(self, reason: str) -> None:
        """See `ConnectionHandler`."""

    def on_message(self, message: IncomingMessage) -> None:
        """See `ConnectionHandler`."""

    def on_published(self, token: int, refused: str | None) -> None:
        """See `ConnectionHandler`."""
        self.answers[token] = refused

    def on_subscribed(self) -> None:
        """See `ConnectionHandler`."""


class AtWords(logging.Handler):
    """Does something in the moment that something is said."""

    def __init__(self, words: str, do: Callable[[], object]) -> None:
        """Listen to everybody."""
        super().__init__()
        self.done: list[object] = []
        self._words = words
        self._do = do

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        if self._words in record.getMessage():
            self.done.append(self._do())


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    """At the same broker."""
    made = Client(broker)
    yield made
    made.stop()


@pytest.fixture
def front(broker: Broker, tmp_path: Path) -> Iterator[Ingress]:
    """Runs, and stores in memory."""
    clock = time.monotonic
    lanes = Egress(
        lambda _broker: MemoryQueue("gw", "b", 10**6, clock),
        lambda _broker, queue: Uplink(
            queue, SenderProfile("gw"), Connection, RateLimiter(), clock
        ),
        tls=False,
        watchdog=LoopWatchdog(clock),
    )
    impostors = IdentityCheck(
        tmp_path / "impostors.jsonl", time.time, has_certificates=False
    )
    made = Ingress(
        "gw",
        lambda session, handler: Connection(broker.endpoint, session, handler),
        lanes,
        3,
        clock,
        checks=AdmissionChecks(SenderRateLimit(100), impostors),
    )
    yield made
    made.stop()
    lanes.close()


def test_who_hears_that_it_is_up_is_heard(
    front: Ingress, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker keeps nothing of a message that comes before its taker."""
    at_words = AtWords("gateway gw is up", lambda: client.says("/forward/3/1/2/pri5"))
    log = logging.getLogger("gateway_daemon.gateway.ingress")
    caplog.set_level(logging.INFO, log.name)
    log.addHandler(at_words)
    threading.Thread(target=front.run, args=(no_heartbeat,), daemon=True).start()
    wait_until(lambda: at_words.done)
    log.removeHandler(at_words)

    assert at_words.done == [None], f"{NO_SUBSCRIBERS} would be a message that is lost"
    assert front.is_up

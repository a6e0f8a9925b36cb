"""Several parts of a program on one MQTT session, against a real broker."""

import random
import time
from collections.abc import Callable, Iterator

import pytest
from conftest import Broker, wait_until
from connection_events import Recorder

from service_runtime.tls import Endpoint
from spatial_mqtt.connection import Backoff, Connection
from spatial_mqtt.shared_connection import (
    UNCLAIMED_S,
    SharedConnection,
    SharedSession,
)
from spatial_mqtt.transport import Publication, Session

pytestmark = pytest.mark.broker

TEMPLATE = Session("gw-ear", expiry_s=600, manual_ack=True, receive_maximum=2)
LANE = Session("gw", (("/custody/gw", 1),))
"""A part with fixed filters, which does not acknowledge."""


class Program:
    """A program's connection with its parts, and a plain client beside it."""

    def __init__(self, endpoint: Endpoint, offset_s: Callable[[], float]) -> None:
        self.shared = SharedConnection(
            endpoint,
            TEMPLATE,
            lambda session, handler: Connection(
                endpoint,
                session,
                handler,
                backoff=Backoff(random.Random(1), base_s=0.05, cap_s=0.2),
            ),
            lambda: time.monotonic() + offset_s(),
        )
        self.parts: list[SharedSession] = []

    def join(self, session: Session) -> tuple[SharedSession, Recorder]:
        events = Recorder()
        part = self.shared.join(session, events)
        self.parts.append(part)
        part.start()
        return part, events

    def receive(self, filter_: str) -> tuple[SharedSession, Recorder]:
        """Join as the part that subscribes at run time."""
        part, events = self.join(TEMPLATE)
        wait_until(lambda: events.ups)
        part.subscribe([(filter_, 1)])
        wait_until(lambda: events.subscribed)
        return part, events

    def stop(self) -> None:
        for part in self.parts:
            part.stop()


@pytest.fixture
def offset_s() -> list[float]:
    """Added to the clock."""
    return [0.0]


@pytest.fixture
def start(broker: Broker, offset_s: list[float]) -> Iterator[Callable[[], Program]]:
    """Start programs that are stopped after the test."""
    programs: list[Program] = []

    def make() -> Program:
        programs.append(Program(broker.endpoint, lambda: offset_s[0]))
        return programs[-1]

    yield make
    for program in programs:
        program.stop()


@pytest.fixture
def say(broker: Broker) -> Iterator[Callable[..., None]]:
    """Publish as another client, and wait for the broker's answer."""
    events = Recorder()
    other = Connection(broker.endpoint, Session("other"), events)
    other.start()
    wait_until(lambda: events.ups)

    def publish(topic: str, payload: bytes = b"x") -> None:
        before = len(events.published)
        other.publish(Publication(topic, payload))
        wait_until(lambda: len(events.published) > before)

    yield publish
    other.stop()


def test_each_part_gets_its_own_messages_and_events(
    start: Callable[[], Program], say: Callable[..., None]
) -> None:
    """Fixed filters first; everything else is the receiving part's."""
    program = start()
    lane, lane_events = program.join(LANE)
    wait_until(lambda: lane_events.subscribed)
    _, events = program.receive("/3/#")
    say("/3/1", b"delivery")
    say("/custody/gw", b"receipt")
    token = lane.publish(Publication("/3/2", b"sent"))

    wait_until(lambda: (token, None) in lane_events.published)
    wait_until(lambda: len(events.messages) == 2 and lane_events.messages)
    assert events.payloads() == [b"delivery", b"sent"]
    assert lane_events.payloads() == [b"receipt"]
    assert (lane_events.subscribed, events.subscribed) == (1, 1)


def test_unacknowledged_deliveries_hold_up_no_receipt(
    start: Callable[[], Program], say: Callable[..., None]
) -> None:
    """A part that cannot store what it receives must not delay another's alarm."""
    program = start()
    _, lane_events = program.join(LANE)
    _, events = program.receive("/3/#")
    for number in range(5):
        say("/3/1", b"%d" % number)
    wait_until(lambda: len(events.messages) == TEMPLATE.receive_maximum)
    say("/custody/gw", b"receipt")

    wait_until(lambda: lane_events.payloads() == [b"receipt"])
    assert len(events.messages) == TEMPLATE.receive_maximum


def test_messages_wait_for_a_part_that_starts_later(
    start: Callable[[], Program], say: Callable[..., None]
) -> None:
    """After a restart the lane is ready before the filters of clients are known."""
    earlier = start()
    earlier.receive("/3/#")
    earlier.stop()
    say("/3/1", b"while away")
    program = start()
    _, lane_events = program.join(LANE)
    wait_until(lambda: lane_events.subscribed)
    assert lane_events.ups[0][0], "the broker kept the session"
    say("/3/1", b"later")
    _, events = program.join(TEMPLATE)

    wait_until(lambda: events.payloads() == [b"while away", b"later"])
    assert lane_events.messages == []


def test_messages_that_nothing_wants_are_acknowledged(
    start: Callable[[], Program], say: Callable[..., None], offset_s: list[float]
) -> None:
    """The last client left while the gateway was off; the broker must not hoard."""
    earlier = start()
    earlier.receive("/3/#")
    earlier.stop()
    program = start()
    _, lane_events = program.join(LANE)
    wait_until(lambda: lane_events.subscribed)
    offset_s[0] = UNCLAIMED_S
    for number in range(2 * TEMPLATE.receive_maximum):
        say("/3/1", b"unwanted")
        say("/custody/gw")
        wait_until(lambda: len(lane_events.messages) == number + 1)  # noqa: B023
    _, events = program.receive("/4/#")
    say("/3/1", b"later")

    wait_until(lambda: b"later" in events.payloads())
    assert b"unwanted" not in events.payloads()


def test_receipts_that_a_wildcard_matches_stop_no_delivery(
    start: Callable[[], Program], say: Callable[..., None]
) -> None:
    """The broker sends such a receipt twice: also with QoS 1, by the filter `#`."""
    program = start()
    _, lane_events = program.join(LANE)
    wait_until(lambda: lane_events.subscribed)
    _, events = program.receive("#")
    for _ in range(TEMPLATE.receive_maximum + 1):
        say("/custody/gw", b"receipt")
    say("/3/1", b"delivery")

    wait_until(lambda: events.payloads() == [b"delivery"])
    assert {message.qos for message in lane_events.messages} == {0, 1}


def test_session_full_of_receipts_is_freed_at_the_next_start(
    start: Callable[[], Program], say: Callable[..., None]
) -> None:
    """An earlier version left them without acknowledgement; they are sent again."""
    earlier = start()
    _, unacknowledged = earlier.receive("#")
    for _ in range(TEMPLATE.receive_maximum):
        say("/custody/gw", b"receipt")
    wait_until(lambda: len(unacknowledged.messages) == TEMPLATE.receive_maximum)
    earlier.stop()
    program = start()
    program.join(LANE)
    _, events = program.receive("#")
    say("/3/1", b"delivery")

    wait_until(lambda: events.payloads() == [b"delivery"])


def test_all_parts_are_up_again_after_the_broker_restarted(
    broker: Broker, start: Callable[[], Program], say: Callable[..., None]
) -> None:
    """Each part is informed once for each connection."""
    program = start()
    lane, lane_events = program.join(LANE)
    _, events = program.receive("/3/#")
    broker.kill()
    wait_until(lambda: lane_events.downs and events.downs)
    assert lane.publish(Publication("/3/1", b"x")) is None
    broker.start()

    wait_until(lambda: len(lane_events.ups) == len(events.ups) == 2)
    wait_until(lambda: lane_events.subscribed == 2)
    assert lane.is_up


def test_last_part_ends_the_connection_and_a_new_one_starts_it_again(
    start: Callable[[], Program],
) -> None:
    """A broker may leave the table and return."""
    program = start()
    lane, _ = program.join(LANE)
    receiver, events = program.receive("/3/#")
    lane.stop()
    assert receiver.is_up
    receiver.stop()
    assert program.shared.connection is None
    _, again = program.join(LANE)

    wait_until(lambda: again.subscribed)
    assert len(events.ups) == 1


def test_will_of_a_part_is_the_will_of_the_session(
    broker: Broker, start: Callable[[], Program]
) -> None:
    """Also if another part is started first."""
    program = start()
    will = Publication("/down", b"gw-1")
    late = program.shared.join(Session("presence", will=will), Recorder())
    program.join(LANE)
    wait_until(lambda: program.parts[0].is_up)
    watcher = Recorder()
    link = Connection(broker.endpoint, Session("w", (("/down", 1),)), watcher)
    link.start()
    wait_until(lambda: watcher.subscribed)
    connection = program.shared.connection
    assert connection is not None
    connection.stop(send_disconnect=False)

    wait_until(lambda: watcher.payloads() == [b"gw-1"])
    link.stop()
    late.stop()

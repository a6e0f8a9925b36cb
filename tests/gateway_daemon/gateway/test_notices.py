"""Notices on their way through a gateway: the newest, to nodes that come later."""

import time
from collections.abc import Callable

import pytest
from conftest import Broker, wait_until
from programs import Client

from gateway_daemon.gateway.notice_relay import NoticeRelay
from service_runtime.watchdog import LoopWatchdog
from spatial_mqtt.announcements import Notice
from spatial_mqtt.connection import Connection
from spatial_mqtt.errors import BrokerError, NoticeError
from spatial_mqtt.retained import fetch_retained
from spatial_mqtt.transport import ConnectionHandler, Session

pytestmark = pytest.mark.broker

TOPIC = "/notice/3/1"
OLD, NEW = (Notice(4, 2e9, at_s=at_s).encode() for at_s in (1e9, 1.1e9))


def link(broker: Broker) -> Callable[[Session, ConnectionHandler], Connection]:
    return lambda session, ear: Connection(broker.endpoint, session, ear)


def relay(
    own: Broker,
    *managers: Broker,
    opened: Callable[[str, bytes], bytes] | None = None,
) -> NoticeRelay:
    made = NoticeRelay(
        "gw", [link(m) for m in managers], link(own), LoopWatchdog(time.monotonic),
        verify=opened,
    )  # fmt: skip
    made.start()
    return made


def say(broker: Broker, payload: bytes, topic: str = TOPIC) -> None:
    client = Client(broker.endpoint, "office")
    client.publish(topic, payload, retain=True)
    wait_until(lambda: held(broker, topic) == (payload or None))
    client.connection.stop()


def held(broker: Broker, topic: str = TOPIC) -> bytes | None:
    try:
        return fetch_retained(broker.endpoint, topic, "looks", 0.5)
    except BrokerError:
        return None


def test_node_that_comes_later_gets_the_newest_of_all_managers(
    make_broker: Callable[[], Broker],
) -> None:
    """One Manager slept; the own broker was killed and forgot everything."""
    own, slept, awake = make_broker(), make_broker(), make_broker()
    say(awake, NEW)
    made = relay(own, slept, awake)
    wait_until(lambda: held(own) == NEW)
    say(slept, OLD)
    say(slept, NEW, "/notice/3/2")
    wait_until(lambda: held(own, "/notice/3/2") == NEW)
    between = held(own)
    own.kill()
    own.start()
    wait_until(lambda: held(own) == NEW)
    say(awake, b"")
    wait_until(lambda: held(own) is None)
    made.stop()

    assert between == NEW


def test_manager_and_gateway_on_one_broker_do_not_answer_each_other(
    make_broker: Callable[[], Broker],
) -> None:
    """What is passed on comes back, once."""
    own = make_broker()
    listener = Client(own.endpoint, "node", TOPIC)
    made = relay(own, own)
    say(own, OLD)
    say(own, NEW)
    wait_until(lambda: listener.on(TOPIC).count(NEW) >= 2)
    time.sleep(0.3)
    made.stop()

    assert len(listener.on(TOPIC)) <= 4


def test_what_is_not_signed_is_not_passed_on(
    make_broker: Callable[[], Broker],
) -> None:
    """Else a forged one with a later time would hide the true one."""

    def opened(_topic: str, payload: bytes) -> bytes:
        if payload == NEW:
            raise NoticeError("notice", "signed", payload)
        return payload

    own, manager = make_broker(), make_broker()
    made = relay(own, manager, opened=opened)
    say(manager, NEW)
    say(manager, OLD)
    wait_until(lambda: held(own) == OLD)
    made.stop()

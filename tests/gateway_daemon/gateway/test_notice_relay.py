"""Notice relay: nodes that connect later get the newest notice."""

import time
from collections.abc import Callable

import pytest
from conftest import Broker, wait_until
from programs import Client

from gateway_daemon.gateway.notices_and_updates import NoticeRelay
from service_runtime.watchdog import LoopWatchdog
from spatial_mqtt.announcements import Notice
from spatial_mqtt.client import fetch_retained
from spatial_mqtt.connection import Connection
from spatial_mqtt.errors import BrokerError, NoticeError
from spatial_mqtt.transport import ConnectionHandler, Session

pytestmark = pytest.mark.broker

TOPIC = "/notice/3/1"
OLD, NEW = (Notice(4, 2e9, at_s=at_s).encode() for at_s in (1e9, 1.1e9))


def connector(broker: Broker) -> Callable[[Session, ConnectionHandler], Connection]:
    return lambda session, handler: Connection(broker.endpoint, session, handler)


def relay(
    own: Broker,
    *managers: Broker,
    verify: Callable[[str, bytes], bytes] | None = None,
) -> NoticeRelay:
    notice_relay = NoticeRelay(
        "gw",
        [connector(m) for m in managers],
        connector(own),
        LoopWatchdog(time.monotonic),
        verify=verify,
    )
    notice_relay.start()
    return notice_relay


def publish_retained(broker: Broker, payload: bytes, topic: str = TOPIC) -> None:
    client = Client(broker.endpoint, "office")
    client.publish(topic, payload, retain=True)
    wait_until(lambda: retained_payload(broker, topic) == (payload or None))
    client.connection.stop()


def retained_payload(broker: Broker, topic: str = TOPIC) -> bytes | None:
    try:
        return fetch_retained(broker.endpoint, topic, "reader", 0.5)
    except BrokerError:
        return None


def test_late_node_gets_the_newest_notice_of_all_managers(
    make_broker: Callable[[], Broker],
) -> None:
    """One Manager is outdated; the own broker is killed and loses its state."""
    own, outdated, current = make_broker(), make_broker(), make_broker()
    publish_retained(current, NEW)
    notice_relay = relay(own, outdated, current)
    wait_until(lambda: retained_payload(own) == NEW)
    publish_retained(outdated, OLD)
    publish_retained(outdated, NEW, "/notice/3/2")
    wait_until(lambda: retained_payload(own, "/notice/3/2") == NEW)
    between = retained_payload(own)
    own.kill()
    own.start()
    wait_until(lambda: retained_payload(own) == NEW)
    publish_retained(current, b"")
    wait_until(lambda: retained_payload(own) is None)
    notice_relay.stop()

    assert between == NEW


def test_manager_and_gateway_on_one_broker_do_not_loop(
    make_broker: Callable[[], Broker],
) -> None:
    """A relayed notice comes back once."""
    own = make_broker()
    listener = Client(own.endpoint, "node", TOPIC)
    notice_relay = relay(own, own)
    publish_retained(own, OLD)
    publish_retained(own, NEW)
    wait_until(lambda: listener.on(TOPIC).count(NEW) >= 2)
    time.sleep(0.3)
    notice_relay.stop()

    assert len(listener.on(TOPIC)) <= 4


def test_unsigned_notice_is_not_relayed(
    make_broker: Callable[[], Broker],
) -> None:
    """Otherwise a forged notice with a later time would hide the genuine one."""

    def verify(_topic: str, payload: bytes) -> bytes:
        if payload == NEW:
            raise NoticeError("notice", "signed", payload)
        return payload

    own, manager = make_broker(), make_broker()
    notice_relay = relay(own, manager, verify=verify)
    publish_retained(manager, NEW)
    publish_retained(manager, OLD)
    wait_until(lambda: retained_payload(own) == OLD)
    notice_relay.stop()

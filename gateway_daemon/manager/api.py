"""Manager API: applies a message on an API topic to the registry. No I/O.

Source: Gamma (seed 000) and the API table of the published system.
"""

from collections.abc import Callable, Mapping
from typing import Final

from gateway_daemon.gateway.load_report import decode_load_report
from gateway_daemon.manager.leases import forget_server
from gateway_daemon.manager.registry import Registry
from gateway_daemon.manager.table_changes import add_broker, remove_broker
from spatial_mqtt.directory import (
    BrokerInfo,
    decode_area_setting,
    decode_broker_entry,
    decode_broker_heartbeat,
    decode_gateway_heartbeat,
    decode_gateway_notice,
    decode_gateway_reference,
)
from spatial_mqtt.errors import DirectoryError
from spatial_mqtt.topics import (
    AREA_REQUEST_CONTENT,
    BROKER_ADD,
    BROKER_DOWN,
    BROKER_HEARTBEAT,
    BROKER_MESSAGES,
    BROKER_REMOVE,
    COMMAND_CONTENT,
    GATEWAY_AREA_REQUEST,
    GATEWAY_DOWN,
    GATEWAY_FORGET,
    GATEWAY_HEARTBEAT,
    GATEWAY_LOAD,
    GATEWAY_MESSAGES,
    GATEWAY_NOTICE,
    GATEWAY_SET,
)
from spatial_mqtt.transport import IncomingMessage

API_TOPICS: Final = (
    GATEWAY_MESSAGES,
    GATEWAY_NOTICE,
    GATEWAY_HEARTBEAT,
    GATEWAY_DOWN,
    GATEWAY_LOAD,
    GATEWAY_SET,
    GATEWAY_AREA_REQUEST,
    GATEWAY_FORGET,
    BROKER_ADD,
    BROKER_REMOVE,
    BROKER_MESSAGES,
    BROKER_HEARTBEAT,
    BROKER_DOWN,
)


def apply_message(
    registry: Registry, incoming: IncomingMessage, now_ms: int
) -> Registry:
    """Return the registry after a message.

    Args:
        registry: The current state.
        incoming: On a topic that changes records or versions, not presence, without
            the name of a gateway.
        now_ms: Wall clock, for the stamp.

    Raises:
        DirectoryError: The message does not parse, or the change is not possible.
        KeyError: The topic is not one of these.
    """
    payload = incoming.payload
    changes: dict[str, Callable[[], Registry]] = {
        GATEWAY_NOTICE: lambda: registry.with_notice(
            decode_gateway_notice(payload), now_ms
        ),
        GATEWAY_SET: lambda: _set(registry, incoming, now_ms),
        GATEWAY_AREA_REQUEST: lambda: _set(registry, incoming, now_ms),
        GATEWAY_FORGET: lambda: forget_server(
            registry, decode_gateway_reference(payload), now_ms
        ),
        BROKER_ADD: lambda: _add(registry, incoming, now_ms),
        BROKER_REMOVE: lambda: remove_broker(
            registry, decode_broker_entry(payload), now_ms
        ),
    }
    return changes[incoming.topic]()


def find_subject(topic: str, incoming: IncomingMessage) -> BrokerInfo | None:
    """Return the server that its own message is about; None for a command.

    Args:
        topic: Topic without the name of a certificate.
        incoming: The message.

    Raises:
        DirectoryError: It does not parse.
    """
    find = None if is_command(topic, incoming) else _SUBJECTS.get(topic)
    return None if find is None else find(incoming.payload)


def is_command(topic: str, incoming: IncomingMessage) -> bool:
    """Whether a message is a command of an administrator.

    Brokers of the original add themselves, again and again, as an administrator does,
    but without a content type.
    """
    if topic == BROKER_ADD:
        return incoming.content == COMMAND_CONTENT
    return topic in _COMMANDS and incoming.content != AREA_REQUEST_CONTENT


_COMMANDS: Final = frozenset({GATEWAY_SET, GATEWAY_FORGET, BROKER_REMOVE})


_SUBJECTS: Final[Mapping[str, Callable[[bytes], BrokerInfo]]] = {
    GATEWAY_NOTICE: lambda payload: decode_gateway_notice(payload).broker_info,
    GATEWAY_HEARTBEAT: lambda payload: decode_gateway_heartbeat(payload).broker_info,
    GATEWAY_DOWN: decode_gateway_reference,
    GATEWAY_LOAD: lambda payload: decode_load_report(payload).gateway,
    GATEWAY_AREA_REQUEST: lambda payload: decode_area_setting(payload).broker_info,
    GATEWAY_SET: lambda payload: decode_area_setting(payload).broker_info,
    BROKER_HEARTBEAT: lambda payload: decode_broker_heartbeat(payload).broker_info,
    BROKER_DOWN: decode_gateway_reference,
}


def _set(registry: Registry, incoming: IncomingMessage, now_ms: int) -> Registry:
    setting = decode_area_setting(incoming.payload)
    is_wish = incoming.topic == GATEWAY_AREA_REQUEST
    if is_wish and not setting.topics:
        # Only an administrator may add a single area.
        raise DirectoryError("wish", "areas in topics", setting.topic)
    if (is_wish or incoming.content == AREA_REQUEST_CONTENT) and setting.topics:
        return registry.with_requested_areas(setting, now_ms)
    return registry.with_areas(setting, now_ms)


def _add(registry: Registry, incoming: IncomingMessage, now_ms: int) -> Registry:
    entry = decode_broker_entry(incoming.payload)
    if incoming.content == AREA_REQUEST_CONTENT:
        return registry  # for a Manager of the original; its heartbeats are for us
    return add_broker(registry, entry, now_ms)

"""MQTT 5 properties: what goes beside a message, written and read."""

import re
from typing import Any, Final

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from spatial_mqtt.link import Publication, Session
from spatial_mqtt.topics import AGE_PROPERTY, ID_PROPERTY, PRIORITY_PROPERTY

_NUMBER: Final = re.compile(r"[1-9][0-9]{0,8}")


def of_connect(session: Session) -> Properties:
    """Properties of CONNECT."""
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = session.expiry_s
    properties.ReceiveMaximum = session.receive_maximum
    return properties


def of_publish(publication: Publication, alias: int | None) -> Properties | None:
    """Properties of PUBLISH; None when there are none."""
    properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    named = {
        PRIORITY_PROPERTY: publication.priority,
        ID_PROPERTY: publication.message_id,
        AGE_PROPERTY: publication.age_s,
    }
    told = [(name, str(value)) for name, value in named.items() if value is not None]
    if told:
        properties.UserProperty = told
    optional = {
        "ResponseTopic": publication.response_topic,
        "MessageExpiryInterval": publication.expiry_s,
        "ContentType": publication.content,
        "TopicAlias": alias,
    }
    for name, value in optional.items():
        if value is not None:
            setattr(properties, name, value)
    return None if properties.isEmpty() else properties  # type: ignore[no-untyped-call]


def size_bytes(
    publication: Publication, topic: str, properties: Properties | None
) -> int:
    """Bytes of the PUBLISH packet, as MQTT 5.0 section 3.3 lays it out."""
    beside = 1 if properties is None else len(properties.pack())  # type: ignore[no-untyped-call]
    packet_id = 2 if publication.qos else 0
    rest = 2 + len(topic.encode()) + packet_id + beside + len(publication.payload)
    length_bytes = (max(rest.bit_length(), 1) + 6) // 7
    return 1 + length_bytes + rest


def user_property(properties: Properties | None, wanted: str) -> str | None:
    """The first user property of a name."""
    for name, value in getattr(properties, "UserProperty", ()):
        if name == wanted:
            return str(value)
    return None


def user_number(properties: Properties | None, wanted: str) -> int | None:
    """A user property that is a number as it was sent; its reader judges it."""
    return as_number(user_property(properties, wanted))


def as_number(text: str | None) -> int | None:
    """A text that was sent for a number; None when it is none."""
    is_number = text is not None and _NUMBER.fullmatch(text) is not None
    return int(text) if text is not None and is_number else None


def plain(properties: Properties | None, name: str) -> Any:  # noqa: ANN401 - paho's
    """A property by its name in MQTT, such as ``ResponseTopic``; None when absent."""
    return getattr(properties, name, None)

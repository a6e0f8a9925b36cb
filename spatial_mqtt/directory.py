"""Directory messages: which gateway serves an area, which broker holds a topic.

JSON payloads with Gamma's field names, so that its clients, gateways and managers work
together with those of this project.

Source: Gamma (seed 000) section 3.2; wire facts of the published system.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Final, Literal, TypeVar

import msgspec

from service_runtime.decoding import DECODE_ERRORS, decode_json
from spatial_mqtt.cells import check_position, distance_km
from spatial_mqtt.errors import DirectoryError, TopicError
from spatial_mqtt.topics import (
    MAX_TOPIC_CHARS,
    check_area,
    covers,
    parse_cell_topic,
)

T = TypeVar("T")

MAX_AREAS: Final = 256
"""Maximum number of areas in one request. A Manager compares each with all others, and
every gateway and node gets the list; a message would have space for 70,000."""

MAX_BEAT_S: Final = 60
"""Longest interval of heartbeats that the settings allow."""

MAX_HOST_CHARS: Final = 253
"""Maximum length of a DNS name (RFC 1035, section 2.3.4)."""

_HOST: Final = re.compile(r"[\w.:%\[\]-]+")


class BrokerInfo(msgspec.Struct, frozen=True, order=True):
    """Address of a broker."""

    host: str
    port: int

    def __post_init__(self) -> None:
        """Reject an empty or long host and an invalid port."""
        if not 1 <= len(self.host) <= MAX_HOST_CHARS:
            rule = f"between 1 and {MAX_HOST_CHARS} characters"
            raise ValueError(f"host must have {rule}, got {len(self.host)}")
        if not 1 <= self.port <= 65535:  # noqa: PLR2004 - TCP
            raise ValueError(f"port must be between 1 and 65535, got {self.port}")

    @property
    def has_valid_host(self) -> bool:
        """Whether the host has only characters of names and addresses.

        Others are accepted in messages: one such broker must not hide the others of a
        table or of a saved registry.
        """
        return _HOST.fullmatch(self.host) is not None

    def __str__(self) -> str:
        """``host:port``."""
        return f"{self.host}:{self.port}"


class BrokerEntry(msgspec.Struct, frozen=True, order=True):
    """One responsible topic (area) of one broker."""

    topic: str
    broker_info: BrokerInfo

    def __post_init__(self) -> None:
        """Reject an area that is not a topic prefix."""
        check_area(self.topic)


class BrokerTable(msgspec.Struct, frozen=True):
    """The distributed brokers, shortest area first; each version is one higher."""

    version: int
    brokers: tuple[BrokerEntry, ...]


class GatewayNotice(msgspec.Struct, frozen=True):
    """Message that a gateway is up, or has applied a table version."""

    broker_info: BrokerInfo
    status: Literal["up", "complete"]
    version: int = -1


class GatewayLocation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Retained message of a gateway about itself.

    Gateways of earlier versions retain a position or nothing.

    Attributes:
        broker_info: Broker of the gateway.
        latitude: In degrees; None is unknown.
        longitude: In degrees; None is unknown.
        reads: Forms of properties that it reads, such as `custody.COMPACT_FORM`.
    """

    broker_info: BrokerInfo
    latitude: float | None = None
    longitude: float | None = None
    reads: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Reject half a position, and one that is not on the earth."""
        if self.latitude is not None and self.longitude is not None:
            check_position(self.latitude, self.longitude)
        elif (self.latitude, self.longitude) != (None, None):
            raise ValueError("latitude and longitude must be given together")


class GatewayReference(msgspec.Struct, frozen=True):
    """Reference to a gateway by its broker."""

    broker_info: BrokerInfo


class GatewayHeartbeat(msgspec.Struct, frozen=True):
    """Heartbeat of a gateway.

    Attributes:
        broker_info: Broker of the gateway.
        every_s: Seconds until the next heartbeat; 0 when there will be none.
    """

    broker_info: BrokerInfo
    every_s: float = 0.0

    def __post_init__(self) -> None:
        """Reject a negative or infinite interval."""
        if not 0.0 <= self.every_s < math.inf:
            raise ValueError(f"every_s must be 0 or more, got {self.every_s}")


class BrokerHeartbeat(msgspec.Struct, frozen=True):
    """Heartbeat of a distributed broker.

    Attributes:
        broker_info: Address where gateways reach it.
        topics: Areas that it requests.
        every_s: Seconds until the next heartbeat.
    """

    broker_info: BrokerInfo
    topics: tuple[str, ...]
    every_s: float

    def __post_init__(self) -> None:
        """Reject a heartbeat without areas, or without a next one."""
        if not self.topics:
            raise ValueError("topics must name an area")
        check_areas(self.topics)
        if not 0.0 < self.every_s < math.inf:
            raise ValueError(f"every_s must be more than 0, got {self.every_s}")


class AreaSetting(msgspec.Struct, frozen=True, omit_defaults=True):
    """Areas of a gateway as set by an administrator.

    ``topics`` replaces all areas, and unlists the gateway if it is empty; the older
    ``topic`` adds one.
    """

    broker_info: BrokerInfo
    topics: tuple[str, ...] | None = None
    topic: str | None = None

    def __post_init__(self) -> None:
        """Reject a message without areas, or with a malformed one."""
        if (self.topics is None) == (self.topic is None):
            raise ValueError("topics or topic must be given, and not both")
        check_areas((self.topic or "",) if self.topics is None else self.topics)


def check_areas(areas: Sequence[str]) -> None:
    """Check the areas of one request.

    Raises:
        TopicError: One is malformed, or there are too many.
    """
    if len(areas) > MAX_AREAS:
        raise TopicError("areas", f"at most {MAX_AREAS}", len(areas))
    for area in areas:
        if len(check_area(area)) > MAX_TOPIC_CHARS:
            raise TopicError("area", f"at most {MAX_TOPIC_CHARS} characters", area)


def encode_directory_message(message: msgspec.Struct | Sequence[BrokerEntry]) -> bytes:
    """Encode a directory message as JSON."""
    return msgspec.json.encode(message)


def decode_directory_message(payload: bytes, form: type[T], what: str) -> T:
    """Decode a directory message; the functions below decode one form each.

    Args:
        payload: JSON.
        form: Its type.
        what: Its name, for the error.

    Raises:
        DirectoryError: The payload does not parse.
    """
    try:
        return decode_json(payload, form)
    except DECODE_ERRORS as error:
        raise DirectoryError(what, f"JSON of its form ({error})", payload) from error


def _decoder(form: type[T], what: str) -> Callable[[bytes], T]:
    return lambda payload: decode_directory_message(payload, form, what)


decode_gateways = _decoder(tuple[BrokerEntry, ...], "gateway list")  # GATEWAY_INFO
decode_broker_table = _decoder(BrokerTable, "broker table")
decode_version = _decoder(int, "table version")  # BROKER_READY
decode_gateway_notice = _decoder(GatewayNotice, "gateway notice")
decode_gateway_location = _decoder(GatewayLocation, "gateway's place")
decode_gateway_heartbeat = _decoder(GatewayHeartbeat, "gateway")
decode_broker_heartbeat = _decoder(BrokerHeartbeat, "broker heartbeat")
decode_area_setting = _decoder(AreaSetting, "area setting")
decode_broker_entry = _decoder(BrokerEntry, "broker entry")


def decode_gateway_reference(payload: bytes) -> BrokerInfo:
    """Decode a reference to a gateway."""
    return decode_directory_message(payload, GatewayReference, "gateway").broker_info


def rank_gateways(
    entries: Sequence[BrokerEntry],
    topic: str,
    shuffle: Callable[[list[BrokerEntry]], None],
) -> list[BrokerInfo]:
    """Order gateways for a client at a topic, best first, each once.

    Entries are shuffled (equal areas share the load), then sorted by the length of
    the area, longest first. Those whose area covers the topic come first. The others
    follow for fail-over by their distance on the sphere, which also selects the
    gateway where no area covers the topic.

    Source:
        Gamma (seed 000) section 3.2, steps 5-11, where an area matches.
    """
    ordered = list(entries)
    shuffle(ordered)
    ordered.sort(key=lambda entry: len(entry.topic), reverse=True)
    near = [entry for entry in ordered if covers(entry.topic, topic)]
    far = [entry for entry in reversed(ordered) if not covers(entry.topic, topic)]
    far.sort(key=lambda entry: _distance_km(entry.topic, topic))
    return list(dict.fromkeys(entry.broker_info for entry in near + far))


def _distance_km(area: str, topic: str) -> float:
    """Distance of the centres of two cells; infinite when one is not a cell."""
    try:
        return distance_km(
            parse_cell_topic(area).center(), parse_cell_topic(topic).center()
        )
    except TopicError:
        return math.inf


def find_responsible_broker(
    brokers: Sequence[BrokerEntry], topic: str
) -> BrokerInfo | None:
    """The broker with the smallest area that covers a topic; None if none does."""
    near = [entry for entry in brokers if covers(entry.topic, topic)]
    if not near:
        return None
    return max(near, key=lambda entry: len(entry.topic)).broker_info


MAX_CELLS = 24
"""Topics in a report: enough to locate the load, in 1 kB."""

_Load = Annotated[float, msgspec.Meta(ge=0.0, le=1e15)]
"""A rate, a share or an age; sums are finite."""

_Topic = Annotated[str, msgspec.Meta(max_length=MAX_TOPIC_CHARS)]

_Cells = Annotated[tuple[tuple[_Topic, _Load], ...], msgspec.Meta(max_length=MAX_CELLS)]


class LaneLoad(msgspec.Struct, frozen=True):
    """Messages that wait for one distributed broker.

    Attributes:
        broker: The broker.
        rows: Number of messages.
        age_s: Seconds that the oldest message has been in the lane, of those that the
            rate limit permits. An age before the gateway is no load of the broker.
    """

    broker: BrokerInfo
    rows: int
    age_s: _Load


class LoadReport(msgspec.Struct, frozen=True):
    """The load of one gateway.

    Attributes:
        gateway: Its public address.
        per_s: Messages per second that clients publish.
        cpu: Busy share of its machine, 0 to 1.
        cells: Topics with the most messages, each with messages per second.
        lanes: Messages that wait for each broker.
    """

    gateway: BrokerInfo
    per_s: _Load = 0.0
    cpu: _Load = 0.0
    cells: _Cells = ()
    lanes: tuple[LaneLoad, ...] = ()


def decode_load_report(payload: bytes) -> LoadReport:
    """Decode the load report of a gateway.

    Raises:
        DirectoryError: It is not valid.
    """
    return decode_directory_message(payload, LoadReport, "gateway load")

"""Overlay keys: topics, gateway names, membership vectors, and the areas of a filter.

A topic is a contiguous range of keys, publishers before subscribers. A gateway's name
contains its location and the address of its broker, so no address book is needed and
gateways of one valley are neighbours along the S2 curve.

A node is in the level-l list of all nodes that share the first l bits of its membership
vector. The vector is a hash of the name, so it is neither stored nor sent.

A filter with wildcards cannot be a key. Its gateway subscribes to the area that
contains all matching topics and drops what no client wants. A message goes to every
area around its topic. Areas exist at few depths to keep their number small: the world,
and S2 levels 3, 7 and 11 (about 1000, 70 and 5 km).

Source: SG-TBPS, Banno et al., JIP 23(2), 2015 ("strong relay-free": publishers and
subscribers of a topic each form a connected part); Aspnes and Shah, Skip Graphs, SODA
2003.
"""

import re
from enum import IntEnum
from hashlib import blake2b
from typing import NamedTuple

from service_runtime.errors import FieldError
from spatial_mqtt.directory import BrokerInfo
from spatial_mqtt.errors import TopicError
from spatial_mqtt.topics import (
    areas_around,
    check_area,
    check_node_id,
    check_publishable,
    filter_area,
)


class TopicRole(IntEnum):
    """Role of a gateway in a topic."""

    PUBLISHER = 0
    SUBSCRIBER = 1


class OverlayKey(NamedTuple):
    """Key of a gateway in a topic; keys are ordered by their fields.

    Attributes:
        topic: The topic.
        role: Publisher or subscriber; a gateway that is both has two keys.
        gateway: Name of the gateway.
    """

    topic: str
    role: int
    gateway: str


def subscriber_range(topic: str) -> tuple[OverlayKey, OverlayKey]:
    """Return the range of a topic's subscribers: first key, and first key after it."""
    return OverlayKey(topic, TopicRole.SUBSCRIBER, ""), OverlayKey(
        topic, TopicRole.SUBSCRIBER + 1, ""
    )


class OverlayError(FieldError):
    """A value that is not valid in the overlay."""


VALLEY_DEPTH = 12
"""Topic levels of a valley: the face and eleven more, cells of 5 km."""

_NAME = re.compile(r"(?P<place>[^@]*)@(?P<host>[^!]+):(?P<port>\d{1,5})!(?P<id>[^!]+)")


class GatewayName(NamedTuple):
    """Name of a gateway; names are ordered by their fields.

    Attributes:
        cell_topic: Topic of the cell where it is; empty if unknown.
        broker: Address of its broker.
        gateway_id: Its id in the settings; several gateways may share a broker.
    """

    cell_topic: str
    broker: BrokerInfo
    gateway_id: str

    def __str__(self) -> str:
        """Format as ``place@host:port!id``."""
        return f"{self.cell_topic}@{self.broker}!{self.gateway_id}"

    @classmethod
    def parse(cls, text: str) -> "GatewayName":
        """Parse a name.

        Raises:
            OverlayError: It has another form.
        """
        found = _NAME.fullmatch(text)
        rule = "place@host:port!id"
        if found is None:
            raise OverlayError("gateway name", rule, text)
        try:
            broker = BrokerInfo(found["host"], int(found["port"]))
            return cls(found["place"], broker, check_node_id(found["id"]))
        except ValueError as error:
            raise OverlayError("gateway name", rule, text) from error


def valley_of(name: str) -> str:
    """Return the valley of a gateway from its name; empty if not in the name."""
    place = name.partition("@")[0]
    return "/".join(place.split("/")[: VALLEY_DEPTH + 1])


VECTOR_BITS = 64
"""Length of a membership vector: collisions are likely only from 2**32 nodes on."""


def membership_vector(node_id: str) -> int:
    """Return the membership vector of a node, between 0 and 2**64 - 1."""
    digest = blake2b(node_id.encode(), digest_size=VECTOR_BITS // 8).digest()
    return int.from_bytes(digest, "big")


def common_prefix_bits(one: int, other: int) -> int:
    """Return how many leading bits two vectors share: their highest common level."""
    return VECTOR_BITS - (one ^ other).bit_length()


WORLD = "/"
AREA_DEPTHS = (4, 8, 12)


def subscription_area(filter_: str) -> str:
    """Return the area where a filter's gateway subscribes.

    It is the world if the fixed part of the filter is not an area, as in ``test/#``.
    """
    try:
        areas = areas_around(check_area(filter_area(filter_)))
    except TopicError:
        return WORLD
    return next((areas[d - 1] for d in reversed(AREA_DEPTHS) if d <= len(areas)), WORLD)


def publication_areas(topic: str) -> tuple[str, ...]:
    """Return the areas whose subscribers may match a message, the widest first.

    Raises:
        TopicError: The topic cannot be published to.
    """
    areas = areas_around(check_publishable(topic))
    return (WORLD, *(areas[depth - 1] for depth in AREA_DEPTHS if depth <= len(areas)))

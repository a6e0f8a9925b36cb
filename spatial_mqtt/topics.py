"""Every topic of the system, both ways: nobody else writes a slash.

    /<face>/<d1>/.../<dL>                 a cell (Gamma)
    /forward/<topic>                      a client's publication (Gamma)
    /forward/<topic>/pri<N>               the same with a priority (P-MQTT)
    /from/<name>/<topic>/pri<N>           the same, its publisher's name checked
    /custody/<sender>                     receipts for a sender
    /custody/offer/<receiver>             "I give receipts for these filters", retained
    /notice/<area>                        what an analyst says of an area, retained
    /update/...,  /piece/...              see `update_topics`
    /overlay/...                          among gateways: see gateway_daemon.overlay
    /api/certificate/...                  renewal of certificates
    /api/...                              Gamma's directory, and ours beside it

Source: Gamma (seed 000) sections 3.2-3.4; P-MQTT (seed 001); shared API table.

Topics of updates, both ways.

/update/<area>                        which version nodes should run, retained
/piece/want/<name>                    "I want these bytes of a file"
/piece/for/<name>                     the bytes

Topics of the overlay, on gateways' own brokers.

/overlay/node/<id>                    a frame for a gateway
/overlay/name/<id>                    a gateway's name in the overlay, retained
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from spatial_mqtt.cells import Cell
from spatial_mqtt.errors import PositionError, TopicError
from spatial_mqtt.priority import LADDER, Ladder

GATEWAY_INFO: Final = "/api/gateway/info/all"
GATEWAY_NOTICE: Final = "/api/notice/gatewaybroker"
GATEWAY_SET: Final = "/api/tool/gatewaybroker/set"
GATEWAY_DOWN: Final = "/api/notice/gatewaybroker/down"
"""Ours: a gateway's last will, and its goodbye."""

GATEWAY_HERE: Final = "/api/notice/gatewaybroker/here"
"""Ours: a gateway says that it will say goodbye."""

_PLACES: Final = "/api/notice/gatewaybroker/place/"
GATEWAY_PLACES: Final = f"{_PLACES}+"
"""Ours: where each gateway stands, retained."""

GATEWAY_WISH: Final = "/api/notice/gatewaybroker/wish"
"""Ours: a gateway asks for areas; an administrator's word on `GATEWAY_SET`, where only
administrators may write, outlives it."""

WISH: Final = "wish"
"""Content type of a gateway's own word on `GATEWAY_SET`, for Gamma's Managers."""

GATEWAY_FORGET: Final = "/api/tool/gatewaybroker/forget"
BROKER_ADD: Final = "/api/tool/distributedbroker/add"
BROKER_REMOVE: Final = "/api/tool/distributedbroker/remove"
BROKER_TABLE: Final = "/api/brokertable/all/info"
BROKER_UPDATE: Final = "/api/brokertable/update/status"
COMPLETE: Final = b"complete"
"""Payload on `BROKER_UPDATE`: every gateway has the newest table."""

GATEWAY_LOAD: Final = "/api/notice/gatewaybroker/load"
"""Ours: what a gateway carries."""

MANAGER_LOAD: Final = "/api/manager/load"
"""Ours: the load of every area, and what was decided for it, retained."""

MANAGER_VIEW: Final = "/api/manager/view"
"""Ours: what a Manager sees, retained on its own broker for the other Managers."""

MANAGER_RECORDS: Final = "/api/manager/record/+"
"""Ours: what was said to any Manager, retained, one topic for each fact."""

RENEWALS: Final = "/api/certificate/asked/+"
"""Ours: wishes for new certificates, one topic for each holder."""

RENEWED: Final = "/api/certificate/issued/+"
"""Ours: the answers, one topic for each holder."""

ERRORS: Final = "/api/errors"
REGISTER: Final = "/api/register"
UNREGISTER: Final = "/api/unregister"

SUBSCRIBE_LOG: Final = "$SYS/broker/log/M/subscribe"
UNSUBSCRIBE_LOG: Final = "$SYS/broker/log/M/unsubscribe"
RECEIVED_COUNT: Final = "$SYS/broker/publish/messages/received"
"""PUBLISH packets that a Mosquitto took since its start."""

CLIENT_LOG: Final = "$SYS/broker/log/N"
"""Where a Mosquitto with ``log_dest topic`` tells who listens to what."""

CUSTODY_OFFER: Final = "/custody/offer"
OFFER_FILTER: Final = "/custody/offer/+"
FORWARD_FILTER: Final = "/forward/#"
FROM_FILTER: Final = "/from/#"
CUSTODY_ANY: Final = "/custody/+"
NOTICES: Final = "/notice/#"
TOOLS: Final = "/api/tool/#"
"""What administrators say to Managers."""

MANAGER_TOPICS: Final = (
    "/api/manager/#",
    "/api/gateway/#",
    "/api/notice/#",
    "/api/tool/#",
    "/api/brokertable/#",
    ERRORS,
)
"""What Managers hear and say."""

CELLS_FILTER: Final = tuple(f"/{face}/#" for face in range(6))
"""Filters that together take every cell's messages and nothing else."""

PRIORITY_PROPERTY: Final = "pri"
"""MQTT 5 user property that carries the priority between our own daemons."""

ID_PROPERTY: Final = "id"
"""MQTT 5 user property that names a message whose payload carries no id."""

AGE_PROPERTY: Final = "age"
"""User property of a late message: whole seconds since it was put into a queue."""

PARCEL: Final = "parcel"
"""Content type of several messages in one publication."""

CHUNK: Final = "chunk"
"""Content type of a piece of a large message."""

REMEMBERED: Final = 8192
"""Topics that come again and are not looked at again."""


_FORWARD = "/forward"
_FROM = "/from/"
_CUSTODY = "/custody/"
_OTHERS = ("/update/", "/piece/", "/api/", "/overlay/")
_PRIORITY_LEVEL = re.compile(r"pri([1-9][0-9]{0,3})")
_CELL_TOPIC = re.compile(r"(/[0-9])+")
_NODE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_OUR_OWN = ("/forward/", _FROM, _CUSTODY, "/notice/", *_OTHERS)
_RESERVED_SENDERS = frozenset({"offer"})
_MAX_TOPIC_BYTES = 65535


@dataclass(frozen=True)
class Forward:
    """A publication on its way to a gateway.

    Attributes:
        topic: Where subscribers will see it, such as ``/1/2/2``.
        priority: Its priority, or None when the publisher gave none.
        by: The publisher's name, where a broker lets nobody else write it.
    """

    topic: str
    priority: int | None = None
    by: str | None = None

    def __str__(self) -> str:
        """The topic to publish on."""
        root = _FORWARD if self.by is None else _FROM + self.by
        tail = "" if self.priority is None else f"/pri{self.priority}"
        return f"{root}{self.topic}{tail}"

    @classmethod
    @lru_cache(REMEMBERED)
    def parse(cls, topic: str, ladder: Ladder = LADDER) -> "Forward":
        """Take a ``/forward`` or ``/from`` topic apart.

        A last level ``priN`` with N on the ladder is the priority; any other
        last level belongs to the topic.

        Raises:
            TopicError: The topic is not under ``/forward/`` or ``/from/<name>/``.
        """
        rest, by = topic.removeprefix(_FORWARD), None
        if topic.startswith(_FROM):
            by, _, rest = topic.removeprefix(_FROM).partition("/")
            rest = "/" + rest
            check_node_id(by)
        elif not topic.startswith(_FORWARD + "/"):
            raise TopicError("topic", "under /forward/ or /from/<name>/", topic)
        head, _, last = rest.rpartition("/")
        match = _PRIORITY_LEVEL.fullmatch(last)
        if match and head and 1 <= int(match[1]) <= ladder.top:
            return cls(head, int(match[1]), by)
        return cls(rest, by=by)


def cell_topic(cell: Cell) -> str:
    """The topic of a cell, ``/face/d1/.../dL``."""
    return "/" + "/".join(map(str, (cell.face, *cell.digits)))


def cell_of(topic: str) -> Cell:
    """The cell of a topic that `cell_topic` made.

    Raises:
        TopicError: The topic is not a cell's.
    """
    rule = "a cell's, /face/d1/.../dL"
    if not _CELL_TOPIC.fullmatch(topic):
        raise TopicError("topic", rule, topic)
    face, *digits = map(int, topic.split("/")[1:])
    try:
        return Cell.from_digits(face, tuple(digits))
    except PositionError as error:
        raise TopicError("topic", rule, topic) from error


def cell_filter(cell: Cell) -> str:
    """The filter that takes the messages of a cell and of all cells in it."""
    return cell_topic(cell) + "/#"


def covers(area: str, topic: str) -> bool:
    """Whether an area (a topic prefix by whole levels) holds a topic.

    ``/1/2`` covers ``/1/2`` and ``/1/2/3`` but not ``/1/23``; ``/`` covers all.
    """
    return area in {"/", topic} or topic.startswith(area.rstrip("/") + "/")


def areas_around(topic: str) -> tuple[str, ...]:
    """Every area that holds a topic, but ``/``: the largest first, itself last."""
    levels = topic.strip("/").split("/")
    return tuple("/" + "/".join(levels[:n]) for n in range(1, len(levels) + 1))


@lru_cache(REMEMBERED)
def matches(filter_: str, topic: str) -> bool:
    """Whether a subscription filter, with ``+`` and ``#``, takes a topic.

    Source:
        MQTT 5.0 section 4.7; wildcards do not take topics that begin with ``$``.
    """
    wanted, levels = filter_.split("/"), topic.split("/")
    if topic.startswith("$") and wanted[0] in {"+", "#"}:
        return False
    if wanted[-1] == "#":
        wanted.pop()
        levels = levels[: len(wanted)]
    return len(wanted) == len(levels) and all(
        want in {"+", level} for want, level in zip(wanted, levels, strict=True)
    )


def meets(filter_: str, area: str) -> bool:
    """Whether a filter may take a topic in an area."""
    wanted = filter_.split("/")
    levels = [] if area == "/" else area.split("/")
    for at, level in enumerate(levels):
        if at >= len(wanted):
            return False
        if wanted[at] == "#":
            return True
        if wanted[at] not in {"+", level}:
            return False
    return True


def overlaps(first: str, second: str) -> bool:
    """Whether some topic matches both filters."""
    ones, others = first.split("/"), second.split("/")
    for one, other in zip(ones, others, strict=False):
        if "#" in {one, other}:
            return True
        if one != other and "+" not in {one, other}:
            return False
    shorter = min(len(ones), len(others))
    # "a/#" matches "a", too.
    return max(ones, others, key=len)[shorter:] in ([], ["#"])


def fixed_part(filter_: str) -> str:
    """The longest area that holds everything a filter takes."""
    levels = filter_.split("/")
    wild = next((at for at, level in enumerate(levels) if level in {"+", "#"}), None)
    fixed = levels if wild is None else levels[:wild]
    return "/".join(fixed) or "/"


def is_of_the_system(topic: str) -> bool:
    """Whether a topic or a filter is about our own business, not a client's."""
    return topic.startswith((*_OUR_OWN, "$")) or topic.rstrip("/") in _OUR_OWN


def notice_topic(area: str) -> str:
    """Where a notice for an area is retained.

    Raises:
        TopicError: It is no area.
    """
    return f"/notice{check_area(area)}"


def notice_filters(topic: str) -> tuple[str, ...]:
    """Where a node at a topic listens: its own place and every area around it."""
    return tuple(notice_topic(area) for area in areas_around(topic))


def check_area(area: str) -> str:
    """Return an area if it is ``/`` or ``/level/level...`` without wildcards.

    Raises:
        TopicError: It is not.
    """
    levels = area.split("/")
    is_path = area == "/" or (levels[0] == "" and len(levels) > 1 and all(levels[1:]))
    if not is_path or "+" in area or "#" in area:
        raise TopicError("area", "/ or levels such as /1/2/2, without + and #", area)
    return area


def check_publishable(topic: str) -> str:
    """Return a topic if a client may publish on it.

    Raises:
        TopicError: It is empty, too long or holds a wildcard or a null.
    """
    too_long = len(topic.encode()) > _MAX_TOPIC_BYTES
    if not topic or too_long or any(c in topic for c in "+#\0"):
        raise TopicError("topic", "1 to 65535 bytes without +, # and null", topic)
    return topic


def check_node_id(node: str) -> str:
    """Return the id of a node, gateway or ingester if it may be one topic level.

    Raises:
        TopicError: It may not.
    """
    if not _NODE_ID.fullmatch(node) or node in _RESERVED_SENDERS:
        rule = "1 to 63 of A-Z a-z 0-9 . _ -, starting with a letter or digit"
        raise TopicError("id", rule, node)
    return node


def custody_topic(sender: str) -> str:
    """Where receipts for a sender are published.

    Raises:
        TopicError: The sender's id cannot be a topic level.
    """
    return _CUSTODY + check_node_id(sender)


def offer_topic(receiver: str) -> str:
    """Where a receiver's offer of receipts is retained.

    Raises:
        TopicError: The receiver's id cannot be a topic level.
    """
    return f"{CUSTODY_OFFER}/{check_node_id(receiver)}"


def gateway_place_topic(gateway: str) -> str:
    """Where a gateway retains its place, on the Managers' brokers.

    Raises:
        TopicError: The gateway's id cannot be a topic level.
    """
    return _PLACES + check_node_id(gateway)


def record_topic(name: str) -> str:
    """Where a Manager retains a record; any name will do."""
    level = blake2b(name.encode(), digest_size=12).hexdigest()
    return MANAGER_RECORDS.replace("+", level)


def renewal_topic(name: str) -> str:
    """Where a holder asks for a new certificate.

    Raises:
        TopicError: The name cannot be a topic level.
    """
    return RENEWALS.replace("+", check_node_id(name))


def renewed_topic(name: str) -> str:
    """Where a holder is answered.

    Raises:
        TopicError: The name cannot be a topic level.
    """
    return RENEWED.replace("+", check_node_id(name))


def custody_sender(topic: str) -> str:
    """The sender that a custody topic is for.

    Raises:
        TopicError: It is not a sender's custody topic.
    """
    if not topic.startswith(_CUSTODY):
        raise TopicError("topic", "under /custody/", topic)
    return check_node_id(topic.removeprefix(_CUSTODY))


ROLLOUTS: Final = "/update/#"
WANTS: Final = "/piece/want/+"
PIECES: Final = "/piece/for/+"


def rollout_topic(area: str) -> str:
    """Where a rollout for an area is retained.

    Raises:
        TopicError: It is no area.
    """
    return f"/update{check_area(area)}"


def rollout_filters(topic: str) -> tuple[str, ...]:
    """Where a node at a topic listens: its own place and every area around it."""
    return tuple(rollout_topic(area) for area in areas_around(topic))


def want_topic(name: str) -> str:
    """Where somebody asks for pieces of a file.

    Raises:
        TopicError: The name cannot be a topic level.
    """
    return WANTS.replace("+", check_node_id(name))


def piece_topic(name: str) -> str:
    """Where somebody gets them.

    Raises:
        TopicError: The name cannot be a topic level.
    """
    return PIECES.replace("+", check_node_id(name))


def wanted_by(topic: str) -> str:
    """Who asks on a topic of `WANTS`.

    Raises:
        TopicError: It is none.
    """
    head = WANTS.removesuffix("+")
    if not topic.startswith(head):
        raise TopicError("topic", f"under {head}", topic)
    return check_node_id(topic.removeprefix(head))


OVERLAY_NAMES: Final = "/overlay/name/"
OVERLAY_NAME_FILTER: Final = f"{OVERLAY_NAMES}+"


def overlay_topic(gateway: str) -> str:
    """Where frames for a gateway are published, on its broker.

    Raises:
        TopicError: The gateway's id cannot be a topic level.
    """
    return f"/overlay/node/{check_node_id(gateway)}"


def overlay_name_topic(gateway: str) -> str:
    """Where a gateway retains its name.

    Raises:
        TopicError: The gateway's id cannot be a topic level.
    """
    return OVERLAY_NAMES + check_node_id(gateway)

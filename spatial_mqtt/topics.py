"""All topics of the system: building, parsing and matching them.

    /<face>/<d1>/.../<dL>                 a cell (Gamma)
    /forward/<topic>                      publication of a client (Gamma)
    /forward/<topic>/pri<N>               the same with a priority (P-MQTT)
    /from/<name>/<topic>/pri<N>           the same, publisher name checked by the broker
    /custody/<sender>                     receipts for a sender
    /custody/offer/<receiver>             offer of receipts, retained
    /notice/<area>                        notice for an area, retained
    /drill/<area>                         drill of the alarms of an area, retained
    /update/<area>                        rollout for an area, retained
    /piece/want/<name>                    request for a chunk of a file
    /piece/for/<name>                     the chunk
    /overlay/node/<id>                    frame for a gateway of the overlay
    /overlay/name/<id>                    name of a gateway in the overlay, retained
    /api/certificate/...                  renewal of certificates
    /api/...                              directory of Gamma, with extensions
    /api/from/<name>/...                  the same, gateway's name checked by the broker

Source: Gamma (seed 000) sections 3.2-3.4; P-MQTT (seed 001); shared API table.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from spatial_mqtt.cells import TOPIC_LEVEL, Cell
from spatial_mqtt.errors import PositionError, TopicError
from spatial_mqtt.priority import LADDER, Ladder

GATEWAY_INFO: Final = "/api/gateway/info/all"
GATEWAY_NOTICE: Final = "/api/notice/gatewaybroker"
GATEWAY_SET: Final = "/api/tool/gatewaybroker/set"
GATEWAY_DOWN: Final = "/api/notice/gatewaybroker/down"
"""Extension: last will of a gateway, also published before it stops."""

GATEWAY_HEARTBEAT: Final = "/api/notice/gatewaybroker/here"
"""Extension: heartbeat of a gateway that publishes on `GATEWAY_DOWN`."""

GATEWAY_LOCATIONS: Final = "/api/notice/gatewaybroker/place/+"
"""Extension: positions of the gateways, retained."""

GATEWAY_AREA_REQUEST: Final = "/api/notice/gatewaybroker/wish"
"""Extension: a gateway requests areas. A setting by an administrator on `GATEWAY_SET`,
where only administrators may write, takes precedence."""

AREA_REQUEST_CONTENT: Final = "wish"
"""Content type of a server's own request on a tool's topic, for Gamma's Managers."""

COMMAND_CONTENT: Final = "command"
"""Content type of a command that an administrator's client waits for."""

GATEWAY_MESSAGES: Final = "/api/from/+/notice/gatewaybroker/#"
"""Extension: what gateways publish, below the checked name of a certificate."""

BROKER_NOTICE: Final = "/api/notice/distributedbroker"
BROKER_HEARTBEAT: Final = f"{BROKER_NOTICE}/here"
BROKER_DOWN: Final = f"{BROKER_NOTICE}/down"
BROKER_MESSAGES: Final = "/api/from/+/notice/distributedbroker/#"
"""Extensions: a distributed broker is up and requests areas, or stops."""
GATEWAY_FORGET: Final = "/api/tool/gatewaybroker/forget"
BROKER_ADD: Final = "/api/tool/distributedbroker/add"
BROKER_REMOVE: Final = "/api/tool/distributedbroker/remove"
BROKER_TABLE: Final = "/api/brokertable/all/info"
BROKER_UPDATE: Final = "/api/brokertable/update/status"
COMPLETE: Final = b"complete"
"""Payload on `BROKER_UPDATE`: every gateway has the newest table."""

BROKER_READY: Final = "/api/brokertable/update/ready"
"""Extension: version of the newest table that every gateway has, retained. It comes
before `COMPLETE`, at which gateways of the original drop their old subscriptions."""

GATEWAY_LOAD: Final = "/api/notice/gatewaybroker/load"
"""Extension: load of a gateway."""

MANAGER_LOAD: Final = "/api/manager/load"
"""Extension: load of every area, and the decision for it, retained."""

MANAGER_VIEW: Final = "/api/manager/view"
"""Extension: view of a Manager, retained on its broker for the other Managers."""

MANAGER_RECORDS: Final = "/api/manager/record/+"
"""Extension: records of the Managers, retained, one topic for each."""

RENEWAL_REQUESTS: Final = "/api/certificate/asked/+"
"""Extension: requests for new certificates, one topic for each holder."""

RENEWAL_ANSWERS: Final = "/api/certificate/issued/+"
"""Extension: answers to them, one topic for each holder."""

ERRORS: Final = "/api/errors"
REGISTER: Final = "/api/register"
UNREGISTER: Final = "/api/unregister"

SUBSCRIBE_LOG: Final = "$SYS/broker/log/M/subscribe"
UNSUBSCRIBE_LOG: Final = "$SYS/broker/log/M/unsubscribe"
RECEIVED_COUNT: Final = "$SYS/broker/publish/messages/received"
"""PUBLISH packets that Mosquitto received since its start."""

CLIENT_LOG: Final = "$SYS/broker/log/N"
"""Log of the connections of a Mosquitto that has ``log_dest topic``."""

OFFER_FILTER: Final = "/custody/offer/+"
FORWARD_FILTER: Final = "/forward/#"
FROM_FILTER: Final = "/from/#"
CUSTODY_FILTER: Final = "/custody/+"
NOTICE_FILTER: Final = "/notice/#"
DRILL_FILTER: Final = "/drill/#"
ROLLOUT_FILTER: Final = "/update/#"
FILE_REQUESTS: Final = "/piece/want/+"
FILE_CHUNKS: Final = "/piece/for/+"
OVERLAY_NAMES: Final = "/overlay/name/"
OVERLAY_NAME_FILTER: Final = f"{OVERLAY_NAMES}+"
ADMIN_FILTER: Final = "/api/tool/#"
"""Commands of administrators to Managers."""

MANAGER_FILTERS: Final = (
    "/api/manager/#",
    "/api/gateway/#",
    "/api/notice/#",
    "/api/from/#",
    "/api/tool/#",
    "/api/brokertable/#",
    ERRORS,
)
"""Topics that Managers read and write."""

CELL_FILTERS: Final = tuple(f"/{face}/#" for face in range(6))
"""Filters that match the messages of all cells and nothing else."""

PRIORITY_PROPERTY: Final = "pri"
"""MQTT 5 user property with the priority, between daemons of this system."""

ID_PROPERTY: Final = "id"
"""MQTT 5 user property with the id of a message whose payload has none."""

AGE_PROPERTY: Final = "age"
"""User property of a late message: seconds since it was put into a queue."""

BATCH_CONTENT: Final = "parcel"
"""Content type of several messages in one publication."""

FRAGMENT_CONTENT: Final = "chunk"
"""Content type of a fragment of a large message."""

CACHED_TOPICS: Final = 8192
"""Size of the caches of parsed topics."""

MAX_TOPIC_CHARS: Final = 512
"""Limit of a topic, which a cache stores for each entry; that of MQTT is 65,535."""

_FORWARD, _FROM, _CUSTODY = "/forward", "/from/", "/custody/"
_API, _API_FROM = "/api", "/api/from/"
_OTHER_PREFIXES = ("/drill/", "/update/", "/piece/", "/api/", "/overlay/")
_PRIORITY_LEVEL = re.compile(r"pri([1-9][0-9]{0,3})")
_CELL_TOPIC = re.compile(r"(/[0-9])+")
_NODE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_SYSTEM_PREFIXES = ("/forward/", _FROM, _CUSTODY, "/notice/", *_OTHER_PREFIXES)
_RESERVED_SENDERS = frozenset({"offer"})
_MAX_TEXT_BYTES = 65535
_MAX_SLASHES = 200
_FORBIDDEN = re.compile(
    "[\0-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef"
    + "".join(chr(plane << 16 | low) for plane in range(17) for low in (0xFFFE, 0xFFFF))
    + "]"
)
_FILTER = re.compile(r"(?:(?:\+|[^+#/]*)/)*(?:\+|#|[^+#/]*)")


@dataclass(frozen=True)
class ForwardTopic:
    """Topic of a publication to a gateway.

    Attributes:
        topic: Topic for the subscribers, such as ``/1/2/2``.
        priority: Priority; None when the publisher set none.
        publisher: Name of the publisher, checked by the broker; None when unchecked.
    """

    topic: str
    priority: int | None = None
    publisher: str | None = None

    def __str__(self) -> str:
        """The topic to publish on."""
        root = _FORWARD if self.publisher is None else _FROM + self.publisher
        tail = "" if self.priority is None else f"/pri{self.priority}"
        return f"{root}{self.topic}{tail}"

    @classmethod
    def parse(cls, topic: str, ladder: Ladder = LADDER) -> "ForwardTopic":
        """Parse a ``/forward`` or ``/from`` topic.

        A last level ``priN`` with N on the ladder is the priority; any other last
        level belongs to the topic.

        Raises:
            TopicError: It is too long, or not under ``/forward/`` or ``/from/<name>/``.
        """
        if len(topic) > MAX_TOPIC_CHARS:  # not cached, either
            raise TopicError("topic", f"at most {MAX_TOPIC_CHARS} characters", topic)
        return cls._parse(topic, ladder)

    @classmethod
    @lru_cache(CACHED_TOPICS)
    def _parse(cls, topic: str, ladder: Ladder) -> "ForwardTopic":
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
        return cls(rest, publisher=by)


def cell_publication_topics(name: str, cell: str) -> tuple[ForwardTopic, ...]:
    """What a node may publish on, as topics or a filter.

    A broker keeps a retained message for each topic, so the six topics of a cell are
    listed. In a coarser cell the node publishes at a place that is not known.

    Args:
        name: Certificate name of the node.
        cell: Topic of its cell.
    """
    if cell.count("/") <= TOPIC_LEVEL:
        return (ForwardTopic(cell + "/#", publisher=name),)
    priorities = (None, *LADDER.descending)
    return tuple(ForwardTopic(cell, priority, name) for priority in priorities)


def cell_topic(cell: Cell) -> str:
    """The topic of a cell, ``/face/d1/.../dL``."""
    return "/" + "/".join(map(str, (cell.face, *cell.digits)))


def parse_cell_topic(topic: str) -> Cell:
    """Parse the topic of a cell.

    Raises:
        TopicError: The topic is not that of a cell.
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
    """The filter for the messages of a cell and of all cells in it."""
    return cell_topic(cell) + "/#"


def covers(area: str, topic: str) -> bool:
    """Whether an area (a topic prefix of whole levels) contains a topic.

    ``/1/2`` covers ``/1/2`` and ``/1/2/3`` but not ``/1/23``; ``/`` covers all.
    """
    return area in {"/", topic} or topic.startswith(area.rstrip("/") + "/")


def areas_around(topic: str) -> tuple[str, ...]:
    """Areas that contain a topic, without ``/``: largest first, the topic last."""
    levels = topic.strip("/").split("/")
    return tuple("/" + "/".join(levels[:n]) for n in range(1, len(levels) + 1))


@lru_cache(CACHED_TOPICS)
def matches(filter_: str, topic: str) -> bool:
    """Whether a subscription filter, with ``+`` and ``#``, matches a topic.

    Source:
        MQTT 5.0 section 4.7; wildcards do not match topics that start with ``$``.
    """
    filter_levels, levels = filter_.split("/"), topic.split("/")
    if topic.startswith("$") and filter_levels[0] in {"+", "#"}:
        return False
    if filter_levels[-1] == "#":
        filter_levels.pop()
        levels = levels[: len(filter_levels)]
    return len(filter_levels) == len(levels) and all(
        expected in {"+", level}
        for expected, level in zip(filter_levels, levels, strict=True)
    )


def can_match_in(filter_: str, area: str) -> bool:
    """Whether a filter can match a topic in an area."""
    filter_levels = filter_.split("/")
    levels = [] if area == "/" else area.split("/")
    for at, level in enumerate(levels):
        if at >= len(filter_levels):
            return False
        if filter_levels[at] == "#":
            return True
        if filter_levels[at] not in {"+", level}:
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


@dataclass(frozen=True)
class _FilterTree:
    """Filters by level: `filters` end here, the others continue in `branches`."""

    branches: "dict[str, _FilterTree]" = field(default_factory=dict)
    filters: list[str] = field(default_factory=list)

    def add(self, filter_: str) -> None:
        """Add a filter to the root."""
        tree = self
        for level in filter_.split("/"):
            tree = tree.branches.setdefault(level, _FilterTree())
        tree.filters.append(filter_)

    def including(self, levels: Sequence[str], depth: int = 0) -> set[str]:
        """Filters that match every topic that the filter with these levels matches.

        Wildcards do not match topics that start with ``$``.
        """
        level = levels[depth] if depth < len(levels) else None
        is_plain = depth > 0 or level is None or not level.startswith("$")
        found = set[str]()
        if "#" in self.branches and is_plain:
            found.update(self.branches["#"].filters)
        if level is None:
            return found.union(self.filters)
        for each in {level, "+"} if is_plain else {level}:
            if level != "#" and each in self.branches:
                found |= self.branches[each].including(levels, depth + 1)
        return found


def maximal_filters(filters: Iterable[str]) -> frozenset[str]:
    """The filters that no other one of them includes; they match the same topics."""
    unique = frozenset(filters)
    tree = _FilterTree()
    for each in unique:
        tree.add(each)
    return frozenset(f for f in unique if tree.including(f.split("/")) == {f})


def filter_area(filter_: str) -> str:
    """The smallest area that contains everything a filter matches."""
    levels = filter_.split("/")
    wildcard = next((i for i, level in enumerate(levels) if level in {"+", "#"}), None)
    fixed = levels if wildcard is None else levels[:wildcard]
    return "/".join(fixed) or "/"


def is_system_topic(topic: str) -> bool:
    """Whether a topic or filter is used by the system itself, not by clients."""
    return (
        topic.startswith((*_SYSTEM_PREFIXES, "$"))
        or topic.rstrip("/") in _SYSTEM_PREFIXES
    )


def check_area(area: str) -> str:
    """Return an area if it is ``/`` or ``/level/level...`` without wildcards.

    Raises:
        TopicError: The text is not an area.
    """
    levels = area.split("/")
    is_path = area == "/" or (levels[0] == "" and len(levels) > 1 and all(levels[1:]))
    if not is_path or "+" in area or "#" in area:
        raise TopicError("area", "/ or levels such as /1/2/2, without + and #", area)
    return area


def may_be_sent(text: str) -> bool:
    """Whether a broker accepts a topic or filter; its wildcards are not checked.

    Mosquitto ends the connection at any other.

    Source:
        MQTT 5.0 sections 1.5.4 and 4.7.3; TOPIC_HIERARCHY_LIMIT of Mosquitto.
    """
    is_short = text.count("/") <= _MAX_SLASHES and bool(text)
    is_text = is_short and _FORBIDDEN.search(text) is None
    return is_text and len(text.encode()) <= _MAX_TEXT_BYTES


def is_filter(text: str) -> bool:
    """Whether a text is a filter that a broker accepts."""
    return may_be_sent(text) and _FILTER.fullmatch(text) is not None


def check_publishable(topic: str) -> str:
    """Return a topic if a client may publish on it.

    Raises:
        TopicError: It has a wildcard, or a broker does not accept it.
    """
    if not may_be_sent(topic) or "+" in topic or "#" in topic:
        rule = "1 to 65535 bytes and 201 levels, without +, # and control codes"
        raise TopicError("topic", rule, topic)
    return topic


def check_node_id(node: str) -> str:
    """Return the id of a node, gateway or ingester if it is a valid topic level.

    Raises:
        TopicError: The id is not valid.
    """
    if not _NODE_ID.fullmatch(node) or node in _RESERVED_SENDERS:
        rule = "1 to 63 of A-Z a-z 0-9 . _ -, starting with a letter or digit"
        raise TopicError("id", rule, node)
    return node


def named_api_topic(topic: str, name: str) -> str:
    """Topic below a certificate's name for a topic of gateways or brokers.

    Raises:
        TopicError: The name cannot be a topic level.
    """
    return f"{_API_FROM}{check_node_id(name)}{topic.removeprefix(_API)}"


def parse_named_api_topic(topic: str) -> tuple[str | None, str]:
    """Split a topic into the certificate's name, None if it has none, and the rest.

    Raises:
        TopicError: The name is not valid.
    """
    if not topic.startswith(_API_FROM):
        return None, topic
    name, _, rest = topic.removeprefix(_API_FROM).partition("/")
    return check_node_id(name), f"{_API}/{rest}"


def record_topic(name: str) -> str:
    """Topic of a Manager's retained record; its name may be any text."""
    level = blake2b(name.encode(), digest_size=12).hexdigest()
    return MANAGER_RECORDS.replace("+", level)


@dataclass(frozen=True)
class _AreaTopics:
    """Topics of one kind of retained messages for areas.

    Attributes:
        prefix: The topic before the area.
    """

    prefix: str

    def of(self, area: str) -> str:
        """Topic for an area.

        Raises:
            TopicError: The text is not an area, or is the whole world, for which no
                node has a filter.
        """
        if area == "/":
            remedy = "name a face of the cube, such as /4"
            raise TopicError("area", "below /", area, remedy)
        return self.prefix + check_area(area)

    def around(self, topic: str) -> tuple[str, ...]:
        """Filters of a node at a topic: its own cell and every area around it."""
        return tuple(map(self.of, areas_around(topic)))


_NOTICES, _DRILLS = _AreaTopics("/notice"), _AreaTopics("/drill")
_ROLLOUTS = _AreaTopics("/update")
notice_topic, notice_filters = _NOTICES.of, _NOTICES.around
drill_topic, drill_filters = _DRILLS.of, _DRILLS.around
rollout_topic, rollout_filters = _ROLLOUTS.of, _ROLLOUTS.around


@dataclass(frozen=True)
class _NameTopics:
    """Topics of one kind, each for a node, gateway or other holder of an id.

    Attributes:
        filter_: The filter of all of them; its ``+`` is the id.
    """

    filter_: str

    def of(self, name: str) -> str:
        """Topic for an id.

        Raises:
            TopicError: The id cannot be a topic level.
        """
        return self.filter_.replace("+", check_node_id(name))

    def parse(self, topic: str) -> str:
        """Parse the id from a topic.

        Raises:
            TopicError: The topic is of another kind, or its id is not valid.
        """
        head = self.filter_.removesuffix("+")
        if not topic.startswith(head):
            raise TopicError("topic", f"under {head}", topic)
        return check_node_id(topic.removeprefix(head))


_RECEIPTS, _OFFERS = _NameTopics(CUSTODY_FILTER), _NameTopics(OFFER_FILTER)
_FILES = _NameTopics(FILE_REQUESTS)
custody_topic, parse_custody_topic = _RECEIPTS.of, _RECEIPTS.parse
offer_topic, parse_offer_topic = _OFFERS.of, _OFFERS.parse
file_request_topic, parse_file_request_topic = _FILES.of, _FILES.parse
file_chunk_topic = _NameTopics(FILE_CHUNKS).of
gateway_location_topic = _NameTopics(GATEWAY_LOCATIONS).of
renewal_topic = _NameTopics(RENEWAL_REQUESTS).of
renewal_answer_topic = _NameTopics(RENEWAL_ANSWERS).of
overlay_topic = _NameTopics("/overlay/node/+").of
overlay_name_topic = _NameTopics(OVERLAY_NAME_FILTER).of

"""Custody: a sender keeps a message until the next store confirms it is on disk.

A PUBACK only confirms that a broker has the message in memory. The receiver commits,
then publishes a `CustodyReceipt` on ``/custody/<sender>``. A sender without a receipt
sends again; the receiver drops duplicates by id and repeats the receipt. A retained
`CustodyOffer` distinguishes a broker with a store behind it from a plain one.

Receipt on the wire (CBOR): ``{node: {boot: [low, high, low, high, ...]}}``.

Between gateways and stores, Correlation Data of MQTT 5 has in a few bytes what a
receipt is about: priority, id and sender of a message. It replaces the user properties
``pri`` and ``id`` and the Response Topic, which are a fifth of a small message:

    header           1 byte: 0x80 + priority, + 0x20 with an id, + 0x10 for a receipt
    boot             4 bytes of the id, if there is one
    sequence number  of the id: 7 bits in each byte, low bits first, bit 7 set in all
                     bytes but the last
    sender           of the message: node of the id, and receiver of the receipt

No UTF-8 text begins with such a byte. Correlation Data of another form, of other
programs, is ignored.
"""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

import cbor2

from spatial_mqtt.errors import EnvelopeError, ReceiptError, TopicError
from spatial_mqtt.senml import MAX_SEQ, CborError, MessageId, decode_cbor
from spatial_mqtt.topics import (
    check_node_id,
    custody_topic,
    is_filter,
    matches,
    parse_custody_topic,
)

MAX_RECEIPT_BYTES = 64 * 1024

COMPACT_FORM: Final = "correlation"
"""Name of the Correlation Data in `CustodyOffer.takes` and `GatewayLocation.reads`."""

MAX_PRIORITY: Final = 15
_MARK, _MARK_MASK, _HAS_ID, _IS_ANSWERED = 0x80, 0xC0, 0x20, 0x10
_BOOT: Final = re.compile(r"[0-9a-f]{8}")
_BOOT_BYTES: Final = 4
_MAX_SEQ_BYTES: Final = 9


class IntervalSet:
    """Set of sequence numbers, stored as closed intervals.

    Numbers that arrive roughly in order make one interval, so that the whole past of
    a node takes a few bytes.
    """

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._low: list[int] = []
        self._high: list[int] = []
        for low, high in ranges:
            self.add(low, high)

    @classmethod
    def of(cls, numbers: Iterable[int]) -> "IntervalSet":
        """Make a set of sequence numbers in any order."""
        found = cls()
        lows, highs = found._low, found._high
        for number in sorted(numbers):
            if not highs or number > highs[-1] + 1:
                lows.append(number)
                highs.append(number)
            else:
                highs[-1] = number
        return found

    def __contains__(self, seq: int) -> bool:
        """Whether the number is in the set."""
        index = bisect_right(self._low, seq) - 1
        return index >= 0 and seq <= self._high[index]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The intervals (low, high), both included, in order."""
        return iter(zip(self._low, self._high, strict=True))

    def __len__(self) -> int:
        """Number of intervals."""
        return len(self._low)

    def __eq__(self, other: object) -> bool:
        """Whether both hold the same intervals."""
        return isinstance(other, IntervalSet) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def count(self) -> int:
        """Number of sequence numbers."""
        return sum(high - low + 1 for low, high in self)

    def drop_lowest(self, count: int) -> None:
        """Remove the lowest intervals."""
        del self._low[:count]
        del self._high[:count]

    def add(self, low: int, high: int | None = None) -> tuple[int, int]:
        """Add a number or a closed interval; return the interval that contains it."""
        high = low if high is None else high
        if self._low and low == self._high[-1] + 1:  # the most frequent case
            self._high[-1] = high
            return self._low[-1], high
        start = bisect_right(self._low, low)
        if start and self._high[start - 1] >= low - 1:
            start -= 1
        end = bisect_right(self._low, high + 1)
        if start < end:
            low = min(low, self._low[start])
            high = max(high, self._high[end - 1])
        self._low[start:end] = [low]
        self._high[start:end] = [high]
        return low, high


def group_ids(ids: Iterable[MessageId]) -> dict[tuple[str, str], IntervalSet]:
    """Sequence numbers of some ids, by (node, boot)."""
    found: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for message_id in ids:
        found[message_id.node, message_id.boot].append(message_id.seq)
    return {key: IntervalSet.of(numbers) for key, numbers in found.items()}


@dataclass(frozen=True)
class CustodyReceipt:
    """Message ids that are on the receiver's disk.

    Attributes:
        ranges: For each (node, boot), disjoint closed intervals of sequence numbers
            in order.
    """

    ranges: dict[tuple[str, str], tuple[tuple[int, int], ...]]

    @classmethod
    def from_ids(cls, ids: Iterable[MessageId]) -> "CustodyReceipt":
        """Make the receipt for some ids."""
        found = group_ids(ids).items()
        return cls({key: tuple(ranges) for key, ranges in found})

    def __contains__(self, message_id: MessageId) -> bool:
        """Whether a message is on the receiver's disk."""
        ranges = self.ranges.get((message_id.node, message_id.boot))
        if not ranges:
            return False
        low, high = ranges[bisect_right(ranges, (message_id.seq, MAX_SEQ)) - 1]
        return low <= message_id.seq <= high

    def encode(self) -> bytes:
        """Encode for the wire."""
        nodes: dict[str, dict[str, list[int]]] = {}
        for (node, boot), ranges in self.ranges.items():
            flat = [number for pair in ranges for number in pair]
            nodes.setdefault(node, {})[boot] = flat
        return cbor2.dumps(nodes)

    @classmethod
    def decode(cls, payload: bytes) -> "CustodyReceipt":
        """Decode a receipt.

        Raises:
            ReceiptError: The payload is not a receipt.
        """
        if len(payload) > MAX_RECEIPT_BYTES:
            rule = f"at most {MAX_RECEIPT_BYTES} bytes"
            raise ReceiptError("receipt", rule, f"{len(payload)} bytes")
        try:
            nodes = decode_cbor(payload)
            return cls({
                (_name(node, "node"), _name(boot, "boot")): _pairs(flat)
                for node, boots in nodes.items()
                for boot, flat in boots.items()
            })
        except (AttributeError, CborError) as error:
            raise ReceiptError("receipt", "a CBOR map", str(error)) from error


@dataclass(frozen=True)
class CustodyOffer:
    """Announcement, retained on `topics.offer_topic`, of a store behind a broker.

    Only stores make offers. An empty payload on the topic withdraws one.

    Attributes:
        receiver: Id of the program that sends the receipts, as in the topic.
        filters: Topics that get receipts.
        takes: Content types of this system that the receiver reads on them, and
            `custody.COMPACT_FORM` if it reads that.
        is_offline: Whether the receiver is offline. Senders keep their messages or use
            another receiver; without any offer they would rely on the PUBACK alone.
    """

    receiver: str
    filters: tuple[str, ...] = ("#",)
    takes: tuple[str, ...] = ()
    is_offline: bool = False

    def covers(self, topic: str) -> bool:
        """Whether messages on a topic get a receipt."""
        return any(matches(filter_, topic) for filter_ in self.filters)

    def encode(self) -> bytes:
        """Encode for the wire."""
        fields: dict[str, object] = {
            "receiver": self.receiver,
            "filters": list(self.filters),
        }
        if self.takes:
            fields["takes"] = list(self.takes)
        if self.is_offline:
            fields["away"] = True
        return cbor2.dumps(fields)

    @classmethod
    def decode(cls, payload: bytes) -> "CustodyOffer":
        """Decode an offer.

        Raises:
            ReceiptError: The payload is not an offer.
        """
        try:
            fields = decode_cbor(payload)
            filters, receiver = fields["filters"], check_node_id(fields["receiver"])
            takes, is_away = fields.get("takes", []), fields.get("away", False)
        except (TypeError, AttributeError, KeyError, TopicError, CborError) as error:
            rule = "a map with receiver and filters"
            raise ReceiptError("offer", rule, payload) from error
        if not isinstance(filters, list):
            raise ReceiptError("filters", "a list", filters)
        if not isinstance(takes, list):
            raise ReceiptError("takes", "a list", takes)
        return cls(
            receiver,
            tuple(_name(each, "filter") for each in filters),
            tuple(_name(each, "takes") for each in takes),
            is_away is True,
        )


def check_offer_filters(filters: Iterable[str]) -> None:
    """Check filters of a store that makes an offer of the same ones.

    No topic matches the text of a shared subscription, ``$share/group/filter``: the
    offer would cover none, and senders would rely on the PUBACK alone.

    Raises:
        ReceiptError: An offer cannot have one of them.
    """
    for each in filters:
        if not is_filter(each) or each.startswith("$"):
            remedy = "divide topics among several ingesters by [[shard]]"
            rule = "one such as /4/#, without $"
            raise ReceiptError("filter", rule, each, remedy)


def receipt_topic(message_id: MessageId, response_topic: str | None) -> str:
    """Topic for the receipt of a message.

    A relay (a gateway) sets the Response Topic of MQTT 5; a node, whose id is in the
    pack, saves those bytes unless the id is of another node, as after a change of its
    own. Any other topic is ignored, because the sender of receipts may write to topics
    that its clients may not.
    """
    sender = message_id.node
    if response_topic:
        with suppress(TopicError):
            sender = parse_custody_topic(response_topic)
    return custody_topic(sender)


def _name(value: object, label: str) -> str:
    if not isinstance(value, str) or not value:
        raise ReceiptError(label, "text", value)
    return value


def _pairs(flat: object) -> tuple[tuple[int, int], ...]:
    is_flat = isinstance(flat, list) and len(flat) % 2 == 0
    if not is_flat or not all(type(n) is int and 0 <= n <= MAX_SEQ for n in flat):  # type: ignore[attr-defined]
        raise ReceiptError("ranges", "pairs of sequence numbers", flat)
    pairs = tuple(zip(flat[::2], flat[1::2], strict=True))  # type: ignore[index]
    if any(low > high for low, high in pairs):
        raise ReceiptError("ranges", "low before high", flat)
    return tuple(IntervalSet(pairs))


class MessageProperties(NamedTuple):
    """What Correlation Data states about a message.

    Attributes:
        priority: Priority, not checked against the ladder.
        message_id: Id as text; None if the payload contains it.
        response_topic: Topic of the receipt; None if none is requested.
    """

    priority: int
    message_id: str | None = None
    response_topic: str | None = None


def encode_correlation(
    priority: int, message_id: MessageId | None, receiver: str | None
) -> bytes | None:
    """Encode the properties of a message.

    Args:
        priority: Its priority.
        message_id: Its id, if the payload does not contain it.
        receiver: Sender that the receipt goes to, if one is requested.

    Returns:
        Correlation Data; None if they have no such form: the boot of the id has another
        form than queues give it, or the receipt goes to another one than the id names.
    """
    header = _MARK | priority
    if not 1 <= priority <= MAX_PRIORITY:
        return None
    if receiver is not None:
        header |= _IS_ANSWERED
    if message_id is None:
        return bytes((header,)) + (receiver or "").encode()
    is_other = receiver is not None and receiver != message_id.node
    if is_other or not _BOOT.fullmatch(message_id.boot):
        return None
    return b"".join((
        bytes((header | _HAS_ID,)),
        bytes.fromhex(message_id.boot),
        _encode_number(message_id.seq),
        message_id.node.encode(),
    ))


def decode_correlation(data: bytes) -> MessageProperties | None:
    """Decode Correlation Data; None if it has another form."""
    if not data or data[0] & _MARK_MASK != _MARK:
        return None
    header, rest = data[0], data[1:]
    priority = header & MAX_PRIORITY
    is_answered, has_id = bool(header & _IS_ANSWERED), bool(header & _HAS_ID)
    if not priority or (rest and not (is_answered or has_id)):
        return None
    try:
        boot, seq = "", 0
        if has_id:
            boot = rest[:_BOOT_BYTES].hex()
            seq, rest = _decode_number(rest[_BOOT_BYTES:])
        sender = check_node_id(rest.decode("ascii")) if is_answered or has_id else ""
        return MessageProperties(
            priority,
            str(MessageId(sender, boot, seq)) if has_id else None,
            custody_topic(sender) if is_answered else None,
        )
    except (EnvelopeError, TopicError, UnicodeDecodeError):
        return None


def _encode_number(value: int) -> bytes:
    digits = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - 7 bits
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def _decode_number(data: bytes) -> tuple[int, bytes]:
    """Decode a number; return it and the rest of the data.

    Raises:
        EnvelopeError: It is truncated or too large.
    """
    value = 0
    for at, digit in enumerate(data[:_MAX_SEQ_BYTES]):
        value |= (digit & 0x7F) << 7 * at
        if digit < 0x80:  # noqa: PLR2004 - the last one
            return value, data[at + 1 :]
    raise EnvelopeError("seq", f"at most {MAX_SEQ}, in full", data)

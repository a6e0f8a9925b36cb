"""Priority, id and sender of a message as Correlation Data of MQTT 5, in a few bytes.

Between gateways and stores they replace the user properties ``pri`` and ``id`` and the
Response Topic, which are a fifth of a small message:

    header           1 byte: 0x80 + priority, + 0x20 with an id, + 0x10 for a receipt
    boot             4 bytes of the id, if there is one
    sequence number  of the id: 7 bits in each byte, low bits first, bit 7 set in all
                     bytes but the last
    sender           of the message: node of the id, and receiver of the receipt

No UTF-8 text begins with such a byte. Correlation Data of another form, of other
programs, is ignored.
"""

import re
from typing import Final, NamedTuple

from spatial_mqtt.errors import EnvelopeError, TopicError
from spatial_mqtt.senml import MAX_SEQ, MessageId
from spatial_mqtt.topics import check_node_id, custody_topic

COMPACT_FORM: Final = "correlation"
"""Name of this form in `CustodyOffer.takes` and `GatewayLocation.reads`."""

MAX_PRIORITY: Final = 15
_MARK, _MARK_MASK, _HAS_ID, _IS_ANSWERED = 0x80, 0xC0, 0x20, 0x10
_BOOT: Final = re.compile(r"[0-9a-f]{8}")
_BOOT_BYTES: Final = 4
_MAX_SEQ_BYTES: Final = 9


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

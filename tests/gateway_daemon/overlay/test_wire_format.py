from typing import get_origin

import msgspec
import pytest

from gateway_daemon.overlay.keys import (
    GatewayName,
    OverlayError,
    OverlayKey,
    TopicRole,
    valley_of,
)
from gateway_daemon.overlay.messages import (
    PACKET_KINDS,
    PLAIN,
    CopyReceipt,
    Frame,
    HasSubscribers,
    HasSubscribersQuery,
    LevelPacket,
    LevelSearch,
    LevelSearchReply,
    LinkChange,
    LinkSequence,
    LinkStatus,
    Locate,
    Located,
    MessageCopy,
    NeighbourQuery,
    NeighbourReply,
    OverlayMessage,
    PacketBody,
    ProbeRequest,
    RangeReport,
    RankedNode,
    SetLeft,
    SetRight,
    SetRightReply,
    decode_frame,
    encode_frame,
)
from gateway_daemon.overlay.partition import RangePart
from spatial_mqtt.directory import BrokerInfo

ONE, OTHER = (
    OverlayKey("/3/1/2/0", TopicRole.SUBSCRIBER, f"/3/1@h:{n}!g{n}") for n in (1, 2)
)
SEQ = LinkSequence(1, 2)
PACKETS = [
    LevelPacket(2, NeighbourQuery()),
    LevelPacket(0, NeighbourReply(LinkStatus.IN, ONE, SEQ, (ONE, OTHER), refused=True)),
    LevelPacket(1, SetRight(LinkChange.REPAIR, ONE, OTHER, SEQ)),
    LevelPacket(64, SetRightReply(SEQ, (ONE,))),
    LevelPacket(0, SetLeft(SEQ, (OTHER,))),
    Locate(ONE),
    Located(),
    LevelSearch(3, ONE, 7),
    LevelSearchReply(3, is_there=False),
    ProbeRequest(1),
    HasSubscribers(value=True),
    HasSubscribersQuery(),
    MessageCopy(7, OverlayMessage("n:b:1", 5, b"x" * 1000), ONE, OTHER, 30, 1),
    CopyReceipt(7),
    RangeReport(7, 300, tuple(RankedNode(ONE, n) for n in range(300)), is_whole=False),
    RangeReport(7, 0, (), False, (RangePart(ONE, ONE, OTHER),), is_rest_whole=True),
]


@pytest.mark.parametrize("packet", PACKETS, ids=lambda packet: type(packet).__name__)
def test_packet_survives_encoding_and_decoding(packet: PacketBody) -> None:
    """Packets of every kind."""
    frame = encode_frame(ONE, OTHER, packet)

    assert decode_frame(frame) == (ONE, OTHER, packet)


@pytest.mark.parametrize("is_whole", [True, False])
def test_report_of_an_older_gateway_names_no_missing_range(is_whole: bool) -> None:
    body = {"number": 7, "count": 1, "sample": [(ONE, 0)], "is_whole": is_whole}
    frame = Frame(ONE, OTHER, "report", msgspec.Raw(msgspec.msgpack.encode(body)))

    _, _, packet = decode_frame(PLAIN + msgspec.msgpack.encode(frame))

    assert packet == RangeReport(7, 1, (RankedNode(ONE, 0),), is_whole)


def test_every_packet_kind_is_covered() -> None:
    """A new kind must be added to `PACKETS`."""
    bodies = [p.packet if isinstance(p, LevelPacket) else p for p in PACKETS]
    forms = {get_origin(each) or each for each in PACKET_KINDS.values()}

    assert set(map(type, bodies)) == forms


def test_repeated_names_are_encoded_compactly() -> None:
    """A report may be sent over a radio link."""
    assert len(encode_frame(ONE, OTHER, PACKETS[-1])) < 3000


def test_decompression_bomb_is_refused() -> None:
    """A few bytes must not fill the memory."""
    bomb = encode_frame(
        ONE,
        OTHER,
        MessageCopy(1, OverlayMessage("m", 1, bytes(1 << 21)), ONE, OTHER, 1),
    )
    with pytest.raises(OverlayError, match="frame must be a packet of the overlay"):
        decode_frame(bomb)


@pytest.mark.parametrize(
    "packet",
    [
        LevelPacket(0, SetLeft(LinkSequence(0, 2**64 - 1), (OTHER,))),
        LevelPacket(0, SetRightReply(LinkSequence(2**64 - 1), (OTHER,))),
        LevelSearch(3, ONE, -(2**63)),
        RangeReport(7, 1, (RankedNode(ONE, 2**64 - 1),)),
    ],
    ids=lambda packet: type(packet).__name__,
)
def test_number_that_cannot_be_increased_is_refused(
    packet: PacketBody,
) -> None:
    """One more, or a sum, could not be encoded; a search would never end."""
    with pytest.raises(OverlayError, match="frame must be valid levels, numbers"):
        decode_frame(encode_frame(ONE, OTHER, packet))


def test_gateway_name_holds_place_broker_and_id() -> None:
    """Parsing and formatting are inverse; the valley is a prefix of the place."""
    name = GatewayName(
        "/3/1/2/0/1/2/3/0/1/2/3/0/1/2", BrokerInfo("fd00::1", 8883), "g-1"
    )

    assert GatewayName.parse(str(name)) == name
    assert valley_of(str(name)) == "/3/1/2/0/1/2/3/0/1/2/3/0"
    assert not valley_of(str(name._replace(cell_topic="")))


@pytest.mark.parametrize(
    "text", ["", "@h:1", "/3@h:0!g", "/3@h:99999!g", "h:1!g", "/3@h:1!a/b"]
)
def test_invalid_gateway_name_is_refused(text: str) -> None:
    """No reply could be sent to it."""
    with pytest.raises(OverlayError, match="gateway name must be place@host:port!id"):
        GatewayName.parse(text)


def test_refusal_has_the_form_that_earlier_versions_know() -> None:
    """A gateway that cannot store reports a range that is not whole.

    An earlier version keeps such a message and publishes it again. The frame is one of
    that version.
    """
    refusal = RangeReport(7, 1, (RankedNode(OTHER, 0),), is_whole=False)
    frame = bytes.fromhex(
        "009593a82f332f312f322f3001ab2f332f3140683a3121673193a82f332f312f322f3001ab2f33"
        "2f3140683a32216732a67265706f727484a66e756d62657207a5636f756e7401a673616d706c65"
        "919293a82f332f312f322f3001ab2f332f3140683a3221673200a869735f77686f6c65c200"
    )

    assert encode_frame(ONE, OTHER, refusal) == frame
    assert decode_frame(frame) == (ONE, OTHER, refusal)

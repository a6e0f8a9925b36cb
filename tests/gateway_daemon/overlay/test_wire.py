import pytest

from gateway_daemon.overlay import wire_format
from gateway_daemon.overlay.ddll import (
    Agreed,
    Ask,
    Kind,
    Sequence,
    SetLeft,
    SetRight,
    Status,
    Told,
)
from gateway_daemon.overlay.keys import Key, Name, OverlayError, Role, valley_of
from gateway_daemon.overlay.messages import Copy, Message, Placed, Receipt, Report
from gateway_daemon.overlay.publisher_suspension import AskHeard, Heard
from gateway_daemon.overlay.skip_graph_node import (
    Found,
    Locate,
    Located,
    Meet,
    OnLevel,
    Seek,
)
from spatial_mqtt.directory import BrokerInfo

ONE, OTHER = (Key("/3/1/2/0", Role.SUBSCRIBER, f"/3/1@h:{n}!g{n}") for n in (1, 2))
SEQ = Sequence(1, 2)
SAID = [
    OnLevel(2, Ask()),
    OnLevel(0, Told(Status.IN, ONE, SEQ, (ONE, OTHER), refused=True)),
    OnLevel(1, SetRight(Kind.REPAIR, ONE, OTHER, SEQ)),
    OnLevel(64, Agreed(SEQ, (ONE,))),
    OnLevel(0, SetLeft(SEQ, (OTHER,))),
    Locate(ONE),
    Located(),
    Seek(3, ONE, 7),
    Found(3, is_there=False),
    Meet(1),
    Heard(value=True),
    AskHeard(),
    Copy(7, Message("n:b:1", 5, b"x" * 1000), ONE, OTHER, 30, 1),
    Receipt(7),
    Report(7, 300, tuple(Placed(ONE, n) for n in range(300)), is_whole=False),
]


@pytest.mark.parametrize("packet", SAID, ids=lambda packet: type(packet).__name__)
def test_a_packet_arrives_as_it_was_sent(packet: wire_format.Spoken) -> None:
    """Every kind that there is."""
    frame = wire_format.encode(ONE, OTHER, packet)

    assert wire_format.decode(frame) == (ONE, OTHER, packet)


def test_every_kind_is_tried_above() -> None:
    """A new one must not be forgotten."""
    told = {
        wire_format.kind_of(wire_format.encode(ONE, OTHER, packet)) for packet in SAID
    }

    assert told == set(wire_format.KINDS)


def test_names_that_repeat_cost_little() -> None:
    """A report goes over a radio."""
    assert len(wire_format.encode(ONE, OTHER, SAID[-1])) < 3000


def test_a_frame_that_swells_is_refused() -> None:
    """A few bytes must not fill the memory."""
    bomb = wire_format.encode(
        ONE, OTHER, Copy(1, Message("m", 1, bytes(1 << 21)), ONE, OTHER, 1)
    )
    with pytest.raises(OverlayError, match="frame must be a packet of the overlay"):
        wire_format.decode(bomb)


def test_a_name_says_where() -> None:
    """Valley, broker and id, both ways."""
    name = Name("/3/1/2/0/1/2/3/0/1/2/3/0/1/2", BrokerInfo("fd00::1", 8883), "g-1")

    assert Name.parse(str(name)) == name
    assert valley_of(str(name)) == "/3/1/2/0/1/2/3/0/1/2/3/0"
    assert not valley_of(str(name._replace(cell_topic="")))


@pytest.mark.parametrize("text", ["", "@h:1", "/3@h:0!g", "/3@h:99999!g", "h:1!g"])
def test_what_is_no_name_is_refused(text: str) -> None:
    """It could not be answered."""
    with pytest.raises(OverlayError, match="gateway name must be place@host:port!id"):
        Name.parse(text)

"""Drills at a node: apart from notices, signed, short."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from notice_bench import write_keys

from edge_agent.notices import Drills, Notices, ReceivedOrder, make_verifier
from spatial_mqtt.announcements import Drill, Notice, NoticeSigner, read_notice_time_s
from spatial_mqtt.errors import NoticeError
from spatial_mqtt.topics import drill_topic, notice_topic
from spatial_mqtt.transport import IncomingMessage

AREA = "/1/2/2"
TOPIC = drill_topic(AREA)
NOW_S = 1_800_000_000.0
DRILL = Drill(4, NOW_S + 300.0, NOW_S)


def message(payload: bytes, topic: str = TOPIC) -> IncomingMessage:
    return IncomingMessage(topic, payload, 1, False, None, None, None, (1, 1))


class Wall:
    """Settable Unix time."""

    def __init__(self) -> None:
        self.s = NOW_S + 5.0

    def __call__(self) -> float:
        return self.s


def test_drill_is_in_force_until_its_end() -> None:
    """With level and time of receipt; then there is none."""
    wall = Wall()
    drills = Drills(wall)
    drills.on_message(message(DRILL.encode()))

    assert drills.current() == ReceivedOrder(4, NOW_S, NOW_S + 5.0)
    assert (drills.level(), str(drills.current())) == (
        4,
        f"4 {NOW_S:.3f} {NOW_S + 5:.3f}",
    )
    assert drills.summary() == "DRILL of level 4, not an alarm"
    wall.s = NOW_S + 300.0
    assert (drills.current(), drills.level(), drills.summary()) == (None, 1, None)


def test_withdrawal_ends_a_drill_and_an_older_one_does_not_return() -> None:
    """The newest message of an area counts."""
    drills = Drills(Wall())
    end = Drill(1, NOW_S + 3.0, NOW_S + 3.0, withdrawn=True)
    for payload in (DRILL.encode(), end.encode(), DRILL.encode()):
        drills.on_message(message(payload))

    assert drills.level() == 1


def test_relay_can_order_drills_by_time() -> None:
    """Gateways read the time of every form, so that no older one replaces an end."""
    end = Drill(1, NOW_S, NOW_S, withdrawn=True)

    assert [read_notice_time_s(d.encode()) for d in (DRILL, end)] == [NOW_S] * 2


def test_drill_leaves_notices_alone() -> None:
    """On its own topic it is no notice, and on that of notices no drill is read."""
    drills, notices = Drills(Wall()), Notices(None, lambda _: None)
    real = Notice(4, NOW_S + 600.0, at_s=NOW_S)
    notices.on_message(message(real.encode(), notice_topic(AREA)))
    drills.on_message(message(Drill(2, NOW_S + 60, NOW_S + 1).encode()))

    assert notices.level(NOW_S + 5.0) == 4
    assert drills.level() == 2


@pytest.mark.parametrize("sign", [lambda body: body, lambda _: b""])
def test_unsigned_drill_is_refused(
    tmp_path: Path, sign: Callable[[bytes], bytes]
) -> None:
    """With keys only a signed drill counts, and only on its topic."""
    write_keys(tmp_path)
    signer = NoticeSigner(tmp_path / "office")
    drills = Drills(Wall(), make_verifier([str(tmp_path / "office.pub")]))
    drills.on_message(message(sign(DRILL.encode())))
    assert drills.level() == 1
    elsewhere = signer.sign(notice_topic(AREA), DRILL.encode())
    drills.on_message(message(elsewhere))
    assert drills.level() == 1
    assert "signed for /drill/1/2/2" in str(drills.refused)
    drills.on_message(message(signer.sign(TOPIC, DRILL.encode())))
    assert drills.level() == 4


@pytest.mark.parametrize(
    ("more", "rule"),
    [
        ({"level": 9}, "priority"),
        ({"until_s": NOW_S + 901.0}, "until_s must be at most 900 s after at_s"),
        ({"until_s": NOW_S - 1.0}, "until_s must be at most 900 s after at_s"),
        ({"level": 2, "withdrawn": True}, "withdrawn must come without level"),
        ({"drill": False}, "drill must be true"),
        ({"criteria": None}, "unknown field"),
    ],
)
def test_drill_out_of_range_is_refused(more: dict[str, object], rule: str) -> None:
    """The error names the rule."""
    body = json.dumps({"level": 4, "until_s": NOW_S, "at_s": NOW_S} | more)
    with pytest.raises(NoticeError, match=rule):
        Drill.decode(body.encode())

"""Who floods is put aside, alone."""

import pytest

from gateway_daemon.gateway import admission
from gateway_daemon.gateway.admission import BURST_S, SenderRateLimit
from spatial_mqtt.transport import IncomingMessage

PER_S = 10.0


def incoming(topic: str) -> IncomingMessage:
    return IncomingMessage(topic, b"x", 1, False, None, None, None, (1, 1))


def let_in(allowance_: SenderRateLimit, topic: str, count: int, now_s: float) -> int:
    taken = 0
    for _ in range(count):
        if allowance_.allows(incoming(topic), now_s):
            allowance_.charge(incoming(topic), 1, now_s)
            taken += 1
    return taken


def test_flood_is_let_in_at_the_rate() -> None:
    """Ten seconds' worth at once, then so many in a second."""
    made = SenderRateLimit(PER_S)

    assert let_in(made, "/forward/1/2/pri1", 1000, 0.0) == PER_S * BURST_S + 1
    assert let_in(made, "/forward/1/2/pri1", 1000, 1.0) == pytest.approx(PER_S, abs=1)
    assert made.rejected == 2000 - 111


def test_others_and_ones_own_alarm_keep_their_allowance() -> None:
    """Neither another cell nor priority 5 of the same cell waits for it."""
    made = SenderRateLimit(PER_S)
    let_in(made, "/forward/1/2/pri1", 1000, 0.0)

    assert let_in(made, "/forward/1/3/pri1", 5, 0.0) == 5
    assert let_in(made, "/forward/1/2/pri5", 5, 0.0) == 5


def test_publisher_with_a_name_has_one_account_wherever_it_speaks() -> None:
    """And its neighbour in the same cell has another."""
    made = SenderRateLimit(PER_S)
    let_in(made, "/from/n1/1/2/pri1", 1000, 0.0)

    assert let_in(made, "/from/n1/1/3/pri1", 5, 0.0) == 0
    assert let_in(made, "/from/n2/1/2/pri1", 5, 0.0) == 5


def test_parcel_costs_what_is_in_it() -> None:
    """A few publications may hold thousands of messages."""
    made = SenderRateLimit(PER_S)
    parcel = incoming("/forward/1/2/pri1")
    made.charge(parcel, 1000, 0.0)

    assert not made.allows(parcel, 80.0)
    assert made.allows(parcel, 91.0)


def test_false_priority_opens_no_new_account() -> None:
    """A level that is not on the ladder belongs to the topic, which is the cell's."""
    made = SenderRateLimit(PER_S)
    let_in(made, "/forward/1/2/pri1", 1000, 0.0)

    assert let_in(made, "/forward/1/2/pri3", 5, 0.0) == 0


def test_accounts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender of a million topics fills no memory."""
    monkeypatch.setattr(admission, "MAX_ACCOUNTS", 3)
    made = SenderRateLimit(PER_S)
    for place in range(10):
        made.charge(incoming(f"/forward/{place}"), 1, 0.0)

    assert len(made._accounts) == 3  # noqa: SLF001


def test_without_a_limit_everything_is_let_in() -> None:
    """As an operator may wish."""
    assert let_in(SenderRateLimit(None), "/forward/1/2", 5000, 0.0) == 5000


def test_flood_is_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """A log is not flooded in its turn."""
    made = SenderRateLimit(PER_S)
    for now_s in (0.0, 1.0, 59.0, 61.0):
        let_in(made, "/forward/1/2/pri1", 1000, now_s)

    assert caplog.text.count("/1/2 sends more than 10 messages/s") == 2

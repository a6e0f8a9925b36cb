"""Rate limit per sender: a flood delays only its sender."""

import pytest

from gateway_daemon.gateway import incoming
from gateway_daemon.gateway.incoming import BURST_S, Sender, SenderRateLimit
from spatial_mqtt.priority import LADDER
from spatial_mqtt.topics import ForwardTopic
from spatial_mqtt.transport import IncomingMessage

PER_S = 10.0


def incoming_on(topic: str) -> IncomingMessage:
    return IncomingMessage(topic, b"x", 1, False, None, None, None, (1, 1))


def sender(topic: str) -> Sender:
    parsed = ForwardTopic.parse(topic)
    return Sender.of(parsed, is_urgent=LADDER.is_urgent(parsed.priority or 0))


def count_allowed(limit: SenderRateLimit, topic: str, count: int, now_s: float) -> int:
    allowed = 0
    for _ in range(count):
        if limit.allows(sender(topic), now_s):
            limit.charge(sender(topic), incoming_on(topic), [incoming_on(topic)], now_s)
            allowed += 1
    return allowed


def test_flood_is_admitted_at_the_rate() -> None:
    """A burst of ten seconds' worth first, then the rate per second."""
    limit = SenderRateLimit(PER_S)

    assert count_allowed(limit, "/forward/1/2/pri1", 1000, 0.0) == PER_S * BURST_S + 1
    assert count_allowed(limit, "/forward/1/2/pri1", 1000, 1.0) == pytest.approx(
        PER_S, abs=1
    )
    assert limit.rejected == 2000 - 111


def test_other_cells_and_alarms_keep_their_allowance() -> None:
    """Neither another cell nor priority 5 of the same cell is delayed by a flood."""
    limit = SenderRateLimit(PER_S)
    count_allowed(limit, "/forward/1/2/pri1", 1000, 0.0)

    assert count_allowed(limit, "/forward/1/3/pri1", 5, 0.0) == 5
    assert count_allowed(limit, "/forward/1/2/pri5", 5, 0.0) == 5


def test_named_publisher_has_one_account_in_all_cells() -> None:
    """Its neighbour in the same cell has another."""
    limit = SenderRateLimit(PER_S)
    count_allowed(limit, "/from/n1/1/2/pri1", 1000, 0.0)

    assert count_allowed(limit, "/from/n1/1/3/pri1", 5, 0.0) == 0
    assert count_allowed(limit, "/from/n2/1/2/pri1", 5, 0.0) == 5


def test_batch_is_charged_for_the_messages_in_it() -> None:
    """A few publications may hold thousands of messages."""
    limit = SenderRateLimit(PER_S)
    batch = incoming_on("/forward/1/2/pri1")
    limit.charge(sender(batch.topic), batch, [batch] * 1000, 0.0)

    assert not limit.allows(sender(batch.topic), 80.0)
    assert limit.allows(sender(batch.topic), 91.0)


def test_large_message_counts_as_several() -> None:
    """The disk and the link pay for bytes, not for messages."""
    limit = SenderRateLimit(PER_S)
    large = incoming_on("/forward/1/2/pri5")._replace(payload=bytes(1000 * 1024))
    limit.charge(sender(large.topic), large, [large], 0.0)

    assert not limit.allows(sender(large.topic), 80.0)
    assert limit.allows(sender(large.topic), 91.0)
    assert limit.allows(sender("/forward/1/3/pri5"), 0.0)


def test_topic_of_a_batch_is_charged_for_each_message() -> None:
    """Each message is stored with its topic."""
    limit = SenderRateLimit(PER_S)
    batch = incoming_on("/forward/1/2/" + "x" * 200)._replace(payload=bytes(900))
    limit.charge(sender(batch.topic), batch, [batch] * 4000, 0.0)

    assert not limit.allows(sender(batch.topic), 420.0)
    assert limit.allows(sender(batch.topic), 430.0)


def test_invalid_priority_opens_no_new_account() -> None:
    """A level that is no valid priority is charged to the topic of the cell."""
    limit = SenderRateLimit(PER_S)
    count_allowed(limit, "/forward/1/2/pri1", 1000, 0.0)

    assert count_allowed(limit, "/forward/1/2/pri3", 5, 0.0) == 0


def test_account_count_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender that uses a million topics does not fill the memory."""
    monkeypatch.setattr(incoming, "MAX_ACCOUNTS", 3)
    limit = SenderRateLimit(PER_S)
    for place in range(10):
        topic = f"/forward/{place}"
        limit.charge(sender(topic), incoming_on(topic), [], 0.0)

    assert len(limit._accounts) == 3  # noqa: SLF001


def test_without_a_limit_everything_is_admitted() -> None:
    """The settings allow this."""
    assert count_allowed(SenderRateLimit(None), "/forward/1/2", 5000, 0.0) == 5000


def test_flood_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """A flood of messages does not flood the log."""
    limit = SenderRateLimit(PER_S)
    for now_s in (0.0, 1.0, 59.0, 61.0):
        count_allowed(limit, "/forward/1/2/pri1", 1000, now_s)

    assert caplog.text.count("/1/2 sends more than 10 messages/s") == 2

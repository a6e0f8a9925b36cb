"""Messages that found no space and wait for it are stored before all later ones."""

from edge_agent.queue.base import MessageDraft
from gateway_daemon.gateway.incoming import ParsedMessage
from gateway_daemon.gateway.unacknowledged import (
    MAX_WAITING,
    MAX_WAITING_BYTES,
    StorageRetries,
)
from spatial_mqtt.senml import MessageId
from spatial_mqtt.transport import IncomingMessage


def parsed(seq: int, priority: int) -> ParsedMessage:
    return parsed_as(MessageId("n", "b", seq), priority)


def parsed_as(
    id_: MessageId | None, priority: int, payload: bytes = b"x"
) -> ParsedMessage:
    draft = MessageDraft(priority, "/1", lambda _id: payload, id_)
    topic = f"/forward/1/pri{priority}"
    return ParsedMessage(
        draft, None, IncomingMessage(topic, payload, 1, False, None, None, None, (1, 1))
    )


class Store:
    """A store with space for `space` messages; it refuses as the ingress does."""

    def __init__(self, retries: StorageRetries, space: int) -> None:
        self.retries, self.space = retries, space
        self.tried: list[int] = []

    def __call__(self, batch: list[ParsedMessage]) -> list[ParsedMessage]:
        stored = []
        for each in batch:
            self.tried.append(each.draft.id.seq if each.draft.id else -1)
            if self.space > 0:
                self.space -= 1
                stored.append(each)
            else:
                self.retries.add(each)
        return stored


def retries_of(*priorities: int) -> StorageRetries:
    retries = StorageRetries()
    for seq, priority in enumerate(priorities):
        retries.add(parsed(seq, priority))
    return retries


def test_only_the_most_urgent_message_is_tried_while_space_is_missing() -> None:
    """Otherwise a full disk would get five hundred writes every half second."""
    retries = retries_of(4, 5, 4)
    full = Store(retries, 0)
    assert retries.retry(full) == []
    assert retries.retry(full) == []
    assert full.tried == [1, 1]

    free = Store(retries, 9)
    assert len(retries.retry(free)) == 3
    assert free.tried[0] == 1
    assert (retries.wait_s(), retries.retry(free)) == (None, [])


def test_message_that_finds_no_space_keeps_waiting() -> None:
    """A retry drops no message."""
    retries = retries_of(5, 5, 4)
    assert len(retries.retry(Store(retries, 2))) == 2
    assert retries.wait_s() is not None
    assert len(retries.retry(Store(retries, 9))) == 1


def test_less_urgent_message_waits_for_a_waiting_urgent_one() -> None:
    """Space that becomes free between two retries is not used by later messages."""
    retries = retries_of(4)
    less, alike, more = (parsed(9, priority) for priority in (3, 4, 5))
    nameless = parsed_as(None, 1)
    held = [retries.must_wait(each) for each in (less, alike, more, nameless)]
    assert held == [True, False, False, True]
    retries.retry(Store(retries, 1))

    assert not retries.must_wait(less)


def test_exhausted_budget_does_not_hold_messages_back() -> None:
    """A full queue drops less urgent messages by itself."""
    retries = StorageRetries()
    retries.add(parsed(1, 4), is_disk_full=False)

    assert not retries.must_wait(parsed(2, 3))


def test_routine_messages_with_an_id_do_not_wait() -> None:
    """Their senders keep them."""
    assert retries_of(3, 1).wait_s() is None


def test_messages_without_an_id_wait_for_space_on_disk() -> None:
    """Their senders do not send them again; a full queue drops the least urgent."""
    retries = StorageRetries()
    retries.add(parsed_as(None, 5), is_disk_full=False)
    assert retries.wait_s() is None
    retries.add(parsed_as(None, 1))

    assert retries.deliveries == {(1, 1)}


def test_message_that_is_delivered_again_is_held_once() -> None:
    """The later delivery is acknowledged; the first can no longer be."""
    retries, alike = StorageRetries(), parsed_as(None, 1)
    retries.add(alike)
    retries.add(parsed(7, 5))
    later = alike.incoming._replace(delivery=(2, 1))
    assert not retries.adopt(later)
    assert retries.adopt(later._replace(is_duplicate=True))
    assert retries.deliveries == {(2, 1)}
    assert len(retries.retry(Store(retries, 9))) == 2


def test_least_urgent_of_the_largest_sender_is_discarded() -> None:
    retries = StorageRetries()
    for priority in (5, *[1] * MAX_WAITING, 4):
        retries.add(parsed_as(None, priority))
    store = retries.retry(lambda batch: batch)

    assert [each.draft.priority for each in store[:2]] == [5, 4]
    assert len(store) == MAX_WAITING


def test_memory_is_bounded() -> None:
    """Messages beyond the bound stay with their senders."""
    retries = retries_of(*[5] * (MAX_WAITING + 10))

    assert len(retries.retry(Store(retries, 10_000))) == MAX_WAITING


def test_flood_pushes_out_its_own_last_messages() -> None:
    """Not the alarm of another node, nor what the node sent first."""
    retries = StorageRetries()
    other = parsed_as(MessageId("other", "b", 1), 4)
    retries.add(other)
    for seq in range(MAX_WAITING + 10):
        retries.add(parsed(seq, 4))
    stored = retries.retry(Store(retries, 10_000))

    assert stored[0] is other
    found = [each.draft.id.seq for each in stored[1:] if each.draft.id]
    assert found == list(range(MAX_WAITING - 1))


def test_memory_of_large_messages_is_bounded_after_each_retry() -> None:
    retries, size = StorageRetries(), MAX_WAITING_BYTES // 4
    for seq in range(6):
        retries.add(parsed_as(MessageId("n", "b", seq), 4, bytes(size)))
        assert retries.retry(Store(retries, 0)) == []

    assert len(retries.retry(Store(retries, 10))) == 3

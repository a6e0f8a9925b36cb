"""Urgent messages that found no room come before all that came later."""

from edge_agent.queue.base import MessageDraft
from gateway_daemon.gateway.ingress_buffers import MAX_WAITING, UrgentRetries
from gateway_daemon.gateway.ingress_messages import ParsedMessage
from spatial_mqtt.senml import MessageId
from spatial_mqtt.transport import IncomingMessage


def taken(seq: int, priority: int) -> ParsedMessage:
    return taken_as(MessageId("n", "b", seq), priority)


def taken_as(id_: MessageId | None, priority: int) -> ParsedMessage:
    draft = MessageDraft(priority, "/1", lambda _id: b"x", id_)
    topic = f"/forward/1/pri{priority}"
    return ParsedMessage(
        draft, None, IncomingMessage(topic, b"x", 1, False, None, None, None, 1)
    )


class Store:
    """A store with room for so many, which refuses as a gateway's front does."""

    def __init__(self, waiting: UrgentRetries, room: int) -> None:
        self.waiting, self.room = waiting, room
        self.asked: list[int] = []

    def __call__(self, batch: list[ParsedMessage]) -> list[ParsedMessage]:
        found = []
        for each in batch:
            assert each.draft.id is not None
            self.asked.append(each.draft.id.seq)
            if self.room > 0:
                self.room -= 1
                found.append(each)
            else:
                self.waiting.add(each)
        return found


def waiting_of(*priorities: int) -> UrgentRetries:
    waiting = UrgentRetries()
    for seq, priority in enumerate(priorities):
        waiting.add(taken(seq, priority))
    return waiting


def test_while_there_is_no_room_only_the_most_urgent_is_tried() -> None:
    """A full disk is not asked five hundred times in each half second."""
    waiting = waiting_of(4, 5, 4)
    full = Store(waiting, 0)
    assert waiting.retry(full) == []
    assert waiting.retry(full) == []
    assert full.asked == [1, 1]

    roomy = Store(waiting, 9)
    assert len(waiting.retry(roomy)) == 3
    assert roomy.asked[0] == 1
    assert (waiting.wait_s(), waiting.retry(roomy)) == (None, [])


def test_what_still_finds_no_room_goes_on_waiting() -> None:
    """Nothing is dropped by trying."""
    waiting = waiting_of(5, 5, 4)
    assert len(waiting.retry(Store(waiting, 2))) == 2
    assert waiting.wait_s() is not None
    assert len(waiting.retry(Store(waiting, 9))) == 1


def test_nothing_less_urgent_is_tried_before_it() -> None:
    """Room that comes between two tries is not for what came later."""
    waiting = waiting_of(4)
    less, alike, more = (taken(9, priority) for priority in (3, 4, 5))
    nameless = taken_as(None, 1)
    held = [waiting.must_wait(each) for each in (less, alike, more, nameless)]
    assert held == [True, False, False, False]
    waiting.retry(Store(waiting, 1))

    assert not waiting.must_wait(less)


def test_a_spent_budget_holds_nothing_back() -> None:
    """A queue that is full drops what is less urgent by itself."""
    waiting = UrgentRetries()
    waiting.add(taken(1, 4), is_disk_full=False)

    assert not waiting.must_wait(taken(2, 3))


def test_routine_and_nameless_messages_do_not_wait() -> None:
    """Their broker or their sender has them; a receipt could not name the latter."""
    waiting = waiting_of(3, 1)
    waiting.add(taken_as(None, 5))

    assert waiting.wait_s() is None


def test_memory_is_bounded() -> None:
    """What is more waits with its sender alone."""
    waiting = waiting_of(*[5] * (MAX_WAITING + 10))

    assert len(waiting.retry(Store(waiting, 10_000))) == MAX_WAITING

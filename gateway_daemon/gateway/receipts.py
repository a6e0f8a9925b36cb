"""When a gateway answers: at once for what is urgent, gathered for the rest. No I/O."""

import math

from gateway_daemon.gateway.intake import Taken
from spatial_mqtt.custody import Receipt
from spatial_mqtt.envelope import MessageId

GATHER_S = 1.0
"""A receipt may wait so long for others; a sender asks again much later."""

MOST_GATHERED = 64
URGENT_FROM = 4


class Receipts:
    """Ids that are stored, by the topic where their sender waits for the receipt.

    Attributes:
        given: Ids that were receipted.
    """

    def __init__(self) -> None:
        self._ids: dict[str, list[MessageId]] = {}
        self._due_s: dict[str, float] = {}
        self.given = 0

    def add(self, taken: Taken, now_s: float) -> None:
        """A message is on our disk."""
        topic, message_id = taken.receipt_topic, taken.draft.id
        if topic is None or message_id is None:
            return
        ids = self._ids.setdefault(topic, [])
        ids.append(message_id)
        due_s = self._due_s.setdefault(topic, now_s + GATHER_S)
        if taken.draft.priority >= URGENT_FROM or len(ids) >= MOST_GATHERED:
            self._due_s[topic] = min(due_s, now_s)

    def due(self, now_s: float) -> list[tuple[str, Receipt]]:
        """Topics and receipts to publish now; they are forgotten here."""
        topics = [topic for topic, due_s in self._due_s.items() if due_s <= now_s]
        for topic in topics:
            del self._due_s[topic]
        told = [(topic, self._ids.pop(topic)) for topic in topics]
        self.given += sum(len(ids) for _, ids in told)
        return [(topic, Receipt.of(ids)) for topic, ids in told]

    def wait_s(self, now_s: float) -> float | None:
        """Seconds until the next one is due; None when none waits."""
        due_s = min(self._due_s.values(), default=math.inf)
        return None if math.isinf(due_s) else max(0.0, due_s - now_s)

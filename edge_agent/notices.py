"""What analysts say of our place: heard, kept, and forgotten in time."""

import json
import logging
from collections.abc import Callable, Mapping

from spatial_mqtt.errors import NoticeError
from spatial_mqtt.link import Incoming
from spatial_mqtt.notice import CriteriaNotice, Notice

log = logging.getLogger(__name__)

NOTICES_STATE = "notices"

Remember = Callable[[Mapping[str, str]], object]


class Notices:
    """The notices that hold for a node, by the topic of their area.

    Args:
        remembered: What `NOTICES_STATE` held when the agent stopped.
        remember: Stores values for the next start.
        on_change: Called after each change, with no lock held.
    """

    def __init__(
        self,
        remembered: str | None,
        remember: Remember,
        on_change: Callable[[], object] = lambda: None,
    ) -> None:
        self._by_topic = _restored(remembered)
        self._remember = remember
        self.on_change = on_change

    def hear(self, incoming: Incoming) -> None:
        """Take a notice; an empty one takes the earlier one back."""
        topic = incoming.topic
        try:
            notice = Notice.decode(incoming.payload) if incoming.payload else None
        except NoticeError as error:
            log.warning("on %s: %s", topic, error)
            return
        if notice == self._by_topic.get(topic):
            return
        if notice is None:
            del self._by_topic[topic]
        else:
            self._by_topic[topic] = notice
        log.info("notice on %s: %s", topic, notice or "taken back")
        told = {name: each.encode().decode() for name, each in self._by_topic.items()}
        self._remember({NOTICES_STATE: json.dumps(told)})
        self.on_change()

    def level(self, now_s: float) -> int:
        """The highest level that somebody sees here now."""
        notices = list(self._by_topic.values())
        return max((n.level for n in notices if now_s < n.until_s), default=1)

    def criteria(self) -> CriteriaNotice | None:
        """Criteria for our place: the newest; of equal ones the closest area's."""
        told = [
            (notice.criteria.version, len(topic), notice.criteria)
            for topic, notice in list(self._by_topic.items())
            if notice.criteria is not None
        ]
        return max(told, key=lambda each: each[:2])[2] if told else None


def _restored(remembered: str | None) -> dict[str, Notice]:
    try:
        told = json.loads(remembered or "{}")
        return {topic: Notice.decode(text.encode()) for topic, text in told.items()}
    except (ValueError, AttributeError) as error:
        log.warning("remembered notices are not used: %s", error)
        return {}

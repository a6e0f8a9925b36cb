"""What analysts say of our place: heard, kept, and forgotten in time."""

import json
import logging
from collections.abc import Callable, Mapping

from msgspec import structs

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
        on_change: Called after each change, with no lock held; with whether
            criteria were taken back.
    """

    def __init__(
        self,
        remembered: str | None,
        remember: Remember,
        on_change: Callable[[bool], object] = lambda _: None,
    ) -> None:
        self._by_topic = _restored(remembered)
        self._remember = remember
        self.on_change = on_change

    def hear(self, incoming: Incoming) -> None:
        """Take a notice; an empty one takes the earlier one back.

        One without criteria leaves those of the earlier one: who raises the level
        of an area does not mean to take its table away.
        """
        topic = incoming.topic
        earlier = self._by_topic.get(topic)
        try:
            notice = _newer(earlier, incoming.payload)
        except NoticeError as error:
            log.warning("on %s: %s", topic, error)
            return
        if notice == earlier:
            return
        if notice is None:
            del self._by_topic[topic]
        else:
            self._by_topic[topic] = notice
        log.info("notice on %s: %s", topic, notice or "taken back")
        told = {name: each.encode().decode() for name, each in self._by_topic.items()}
        self._remember({NOTICES_STATE: json.dumps(told)})
        had_criteria = earlier is not None and earlier.criteria is not None
        self.on_change(notice is None and had_criteria)

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


def _newer(earlier: Notice | None, payload: bytes) -> Notice | None:
    """The notice of a payload, after an earlier one of the same area.

    Raises:
        NoticeError: It does not parse, or its criteria are the older ones.
    """
    notice = Notice.decode(payload) if payload else None
    if notice is None or earlier is None or earlier.criteria is None:
        return notice
    if notice.criteria is None:
        return structs.replace(notice, criteria=earlier.criteria)
    if notice.criteria.version < earlier.criteria.version:
        rule = f"no older than the one before ({earlier.criteria.version:.0f})"
        remedy = "give it a newer version, or take the other back"
        raise NoticeError("criteria.version", rule, notice.criteria.version, remedy)
    return notice


def _restored(remembered: str | None) -> dict[str, Notice]:
    try:
        told = json.loads(remembered or "{}")
        return {topic: Notice.decode(text.encode()) for topic, text in told.items()}
    except (ValueError, AttributeError) as error:
        log.warning("remembered notices are not used: %s", error)
        return {}

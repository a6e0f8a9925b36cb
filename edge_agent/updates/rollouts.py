"""Rollouts that are heard, kept, and meant for us."""

import json
import logging
from collections.abc import Mapping
from typing import Final

from edge_agent.notices import Remember
from spatial_mqtt.announcements import Opened, Rollout
from spatial_mqtt.errors import NoticeError, RolloutError
from spatial_mqtt.transport import Incoming

log = logging.getLogger(__name__)

ROLLOUTS_STATE: Final = "rollouts"


class Rollouts:
    """What is rolled out around a node, by the topic of the area.

    Args:
        node: The node's id.
        opened: Gives the JSON of a signed rollout by topic and payload.
        remembered: What `ROLLOUTS_STATE` held when the agent stopped.
        remember: Stores values for the next start.

    Attributes:
        refused: Why the last one was refused that was; None when none was.
    """

    def __init__(
        self, node: str, opened: Opened, remembered: str | None, remember: Remember
    ) -> None:
        self._node = node
        self._opened = opened
        self._remember = remember
        self._by_topic = _restored(remembered)
        self.refused: str | None = None

    def hear(self, incoming: Incoming) -> None:
        """Take a rollout. An empty one bears no signature and changes nothing."""
        topic = incoming.topic
        if not incoming.payload:
            return
        try:
            fresh = Rollout.decode(self._opened(topic, incoming.payload))
            _check_newer(self._by_topic.get(topic), fresh)
        except (NoticeError, RolloutError) as error:
            self.refused = f"on {topic}: {error}"
            log.warning("rollout refused %s", self.refused)
            return
        if fresh == self._by_topic.get(topic):
            return
        self._by_topic = {**self._by_topic, topic: fresh}
        log.info("rollout on %s: %s", topic, fresh)
        told = {name: each.encode().decode() for name, each in self._by_topic.items()}
        self._remember({ROLLOUTS_STATE: json.dumps(told)})

    def meant(self, role: str) -> Rollout | None:
        """The newest that is for an image of a role and for us; None for none."""
        return max(
            (
                each
                for each in self._by_topic.values()
                if each.role == role and not each.withdrawn and each.chooses(self._node)
            ),
            key=lambda each: each.at_s,
            default=None,
        )


def _check_newer(earlier: Rollout | None, fresh: Rollout) -> None:
    if earlier is not None and fresh != earlier and fresh.at_s <= earlier.at_s:
        rule = f"newer than the one before ({earlier.at_s:.3f})"
        remedy = "an old one was sent again, or a clock was set back; publish it anew"
        raise RolloutError("at_s", rule, fresh.at_s, remedy)


def _restored(remembered: str | None) -> Mapping[str, Rollout]:
    try:
        told = json.loads(remembered or "{}")
        return {topic: Rollout.decode(text.encode()) for topic, text in told.items()}
    except (ValueError, AttributeError) as error:
        log.warning("remembered rollouts are not used: %s", error)
        return {}

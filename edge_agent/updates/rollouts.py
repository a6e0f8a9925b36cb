"""Rollouts: signed announcements of an image version, stored by area."""

import json
import logging
from collections.abc import Mapping
from typing import Final

from edge_agent.notices import StoreState
from spatial_mqtt.announcements import OpenNotice, Rollout
from spatial_mqtt.errors import NoticeError, RolloutError
from spatial_mqtt.transport import IncomingMessage

log = logging.getLogger(__name__)

ROLLOUTS_STATE: Final = "rollouts"


class Rollouts:
    """The rollouts for a node, by the topic of their area.

    Args:
        node: The node's id.
        verify: Checks the signature of a topic and payload; returns the JSON.
        state: State `ROLLOUTS_STATE` of the last run.
        store_state: Stores values for the next start.

    Attributes:
        refused: Reason of the last refusal; None when none was refused.
    """

    def __init__(
        self, node: str, verify: OpenNotice, state: str | None, store_state: StoreState
    ) -> None:
        self._node = node
        self._opened = verify
        self._remember = store_state
        self._by_topic = _restored(state)
        self.refused: str | None = None

    def on_message(self, incoming: IncomingMessage) -> None:
        """Apply a rollout. An empty payload has no signature and is ignored."""
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
        state = {name: each.encode().decode() for name, each in self._by_topic.items()}
        self._remember({ROLLOUTS_STATE: json.dumps(state)})

    def select(self, role: str) -> Rollout | None:
        """The newest rollout for this node and a role of image; None for none."""
        return max(
            (
                each
                for each in self._by_topic.values()
                if each.role == role
                and not each.withdrawn
                and each.includes_node(self._node)
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
        state = json.loads(remembered or "{}")
        return {topic: Rollout.decode(text.encode()) for topic, text in state.items()}
    except (ValueError, AttributeError) as error:
        log.warning("stored rollouts are not used: %s", error)
        return {}

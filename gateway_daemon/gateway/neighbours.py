"""The gateway's side of the overlay: messages out of our queue, and into our store."""

import logging
from collections.abc import Callable, Sequence

from edge_agent.queue.base import Draft, Message
from gateway_daemon.gateway.detour import Detour
from gateway_daemon.overlay import packets
from gateway_daemon.overlay.live import Heard, Live
from gateway_daemon.overlay.todo import Carried, Ended
from spatial_mqtt.envelope import MessageId
from spatial_mqtt.errors import EnvelopeError
from spatial_mqtt.priority import LADDER

log = logging.getLogger(__name__)


class Neighbours:
    """Joins a detour to the overlay, one way; `store_in` is the other way.

    Args:
        live: The overlay.
        detour: Where messages wait for it.
    """

    def __init__(self, live: Live, detour: Detour) -> None:
        self._live = live
        self._detour = detour
        live.source = self
        detour.use(self)

    @property
    def is_in_company(self) -> bool:
        """See `detour.Way`."""
        return self._live.is_in_company

    @property
    def is_parted(self) -> bool:
        """See `detour.Way`."""
        return bool(self._live.facts.census.silent)

    @property
    def returns(self) -> int:
        """See `detour.Way`."""
        return self._live.facts.census.returns

    @property
    def census(self) -> str:
        """See `detour.Way`."""
        return str(self._live.facts.census)

    def wake(self) -> None:
        """See `detour.Way`."""
        self._live.wake()

    def cut(self, is_cut: bool) -> None:
        """See `detour.Way`."""
        self._live.cut(is_cut)

    def send(self, message: Message, age_s: float) -> None:
        """See `detour.Way`."""
        carried = Carried(message.topic, message.payload, age_s)
        self._live.publish(str(message.id), message.priority, carried)

    def look(self, now_s: float) -> None:
        """See `live.Source`."""
        self._detour.look(now_s)

    def ended(self, ended: Ended) -> None:
        """See `live.Source`."""
        self._detour.ended(ended.id, ended.reached, ended.is_whole)


def store_in(
    take: Callable[[Sequence[Draft]], bool],
) -> Callable[[Heard], object]:
    """Store what is heard for our clients, its ids as their first gateway gave them."""

    def store(heard: Heard) -> None:
        drafts = [_draft(*each) for each in heard]
        if not take([draft for draft in drafts if draft is not None]):
            log.error("%d messages of the overlay are lost to our clients", len(heard))

    return store


def _draft(message: packets.Message, carried: Carried) -> Draft | None:
    try:
        message_id = MessageId.parse(message.id)
        priority = LADDER.check(message.priority)
    except (EnvelopeError, ValueError) as error:
        log.warning("a message of the overlay is dropped: %s", error)
        return None
    payload = carried.payload
    return Draft(
        priority, carried.topic, lambda _id: payload, message_id, carried.age_s
    )

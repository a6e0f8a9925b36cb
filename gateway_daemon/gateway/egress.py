"""Lanes: one durable queue and one uplink for each distributed broker.

A broker that is down holds back its own lane only. Messages that no broker is
responsible for wait in a lane of their own until the table names one.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from edge_agent.queue.base import Draft, Message, Queue, Stats
from edge_agent.queue.inspection import depth_words
from edge_agent.uplink.settings import link_words
from edge_agent.uplink.uplink import Uplink
from gateway_daemon.gateway.overlay_fallback import Detour
from service_runtime.lifecycle import start_loop
from service_runtime.tls import Endpoint
from service_runtime.watchdog import Pulse
from spatial_mqtt.directory import BrokerInfo, BrokerTable, responsible_broker
from spatial_mqtt.senml import MessageId

log = logging.getLogger(__name__)

REROUTE_BATCH = 200
SILENCE_S = 60.0
RETIRES_WITHIN_S = 10.0


@dataclass(frozen=True)
class Lane:
    """The way to one broker; ``uplink`` is None where no broker is known."""

    queue: Queue
    uplink: Uplink | None = None
    thread: threading.Thread | None = None

    @property
    def is_up(self) -> bool:
        """Whether its broker is reached."""
        return self.uplink is not None and self.uplink.down_since_s is None

    def retire(self) -> None:
        """Stop sending; what is in nobody's hands then may be taken out."""
        if self.uplink is not None:
            self.uplink.stop()
        if self.thread is not None:
            self.thread.join(RETIRES_WITHIN_S)
        self.queue.reap()


@dataclass(frozen=True)
class Fill:
    """What waits in a lane.

    Attributes:
        stats: Messages and bytes, and what went through.
        ages_s: Age of the oldest message of each priority that has one.
        is_up: Whether its broker is reached.
    """

    stats: Stats
    ages_s: Mapping[int, float]
    is_up: bool = False


MakeQueue = Callable[[BrokerInfo | None], Queue]
MakeUplink = Callable[[BrokerInfo, Queue], Uplink]


class Lanes:
    """All lanes of a gateway.

    Args:
        make_queue: Opens the queue of a lane; None is the lane without broker.
        make_uplink: Makes the uplink of a lane.
        tls: Whether distributed brokers speak TLS.
        pulse: Listens to the uplinks' loops.
        count: Told the topics of what is put.
        detour: The way round brokers, if this gateway has one.
    """

    def __init__(
        self,
        make_queue: MakeQueue,
        make_uplink: MakeUplink,
        tls: bool,
        pulse: Pulse,
        count: Callable[[Iterable[str]], object] = lambda _: None,
        *,
        detour: Detour | None = None,
    ) -> None:
        self._detour = detour
        self._pulse = pulse
        self._count = count
        self._make_queue = make_queue
        self._make_uplink = make_uplink
        self._tls = tls
        self._lock = threading.RLock()
        self._table = BrokerTable(-1, ())
        self._lanes: dict[BrokerInfo | None, Lane] = {None: Lane(make_queue(None))}

    @property
    def needs_table(self) -> bool:
        """Whether nothing can go anywhere before a broker table is known."""
        return self._detour is None or not self._detour.is_route

    @property
    def table(self) -> BrokerTable:
        """The broker table in use; version -1 before the first one."""
        return self._table

    def apply(self, table: BrokerTable) -> None:
        """Use a new broker table: open its lanes, move what belongs elsewhere now."""
        with self._lock:
            self._table = table
            for entry in table.brokers:
                self._lane(entry.broker_info)
            for broker, lane in list(self._lanes.items()):
                self._reroute(broker, lane)

    def put(
        self,
        drafts: Iterable[Draft],
        state_of: Callable[[Sequence[Draft]], Mapping[str, str]] = lambda _: {},
    ) -> int:
        """Store drafts in their lanes, on disk before this returns.

        Args:
            drafts: Messages.
            state_of: What a lane remembers with its part of them.

        Returns:
            How many were new.
        """
        taken = list(drafts)
        self._count(draft.topic for draft in taken)
        if self._detour is not None and self._detour.is_route:
            return _new(self._detour.put(taken, state_of(taken)))
        return self._put(taken, state_of)

    def _put(
        self,
        drafts: Iterable[Draft],
        state_of: Callable[[Sequence[Draft]], Mapping[str, str]] = lambda _: {},
    ) -> int:
        by_broker: dict[BrokerInfo | None, list[Draft]] = {}
        with self._lock:
            for draft in drafts:
                broker = responsible_broker(self._table.brokers, draft.topic)
                by_broker.setdefault(broker, []).append(draft)
            return sum(
                self._store(self._lane(broker), batch, state_of(batch))
                for broker, batch in by_broker.items()
            )

    def _store(self, lane: Lane, drafts: list[Draft], state: Mapping[str, str]) -> int:
        ids = lane.queue.put(drafts, state)
        if lane.uplink is not None:
            lane.uplink.wake()
        if self._detour is not None:
            self._detour.stored(drafts, ids, lane.uplink)
        return _new(ids)

    def recall(self, name: str) -> list[str]:
        """What lanes remember by a name."""
        with self._lock:
            told = [lane.queue.recall(name) for lane in self._lanes.values()]
        if self._detour is not None:
            told.append(self._detour.queue.recall(name))
        return [value for value in told if value is not None]

    def fills(self) -> dict[BrokerInfo | None, Fill]:
        """What waits in each lane."""
        with self._lock:  # no lane is closed meanwhile
            return {
                broker: Fill(
                    lane.queue.stats(),
                    lane.queue.ages_s(),
                    lane.is_up,
                )
                for broker, lane in self._lanes.items()
            }

    def status(self, now_s: float) -> list[str]:
        """How each broker does and what waits for it, in words.

        Args:
            now_s: Monotonic time, on the uplinks' clock.
        """
        with self._lock:
            lanes = list(self._lanes.values())
        detour = [self._detour.status()] if self._detour is not None else []
        return [*(_words(lane, now_s) for lane in lanes), *detour]

    def close(self) -> None:
        """Stop the uplinks and close the queues."""
        with self._lock:
            for lane in self._lanes.values():
                if lane.uplink is not None:
                    lane.uplink.stop()
                lane.queue.close()
        if self._detour is not None:
            self._detour.close()

    def _lane(self, broker: BrokerInfo | None) -> Lane:
        lane = self._lanes.get(broker)
        if lane is None and broker is not None:
            queue = self._make_queue(broker)
            uplink = self._make_uplink(broker, queue)
            name = f"lane {broker}"
            thread = start_loop(self._pulse, name, SILENCE_S, uplink.run)
            lane = self._lanes[broker] = Lane(queue, uplink, thread)
            uplink.use(Endpoint(broker.host, broker.port, self._tls))
        assert lane is not None  # noqa: S101 - the lane without broker always exists
        return lane

    def _reroute(self, broker: BrokerInfo | None, lane: Lane) -> None:
        """Move what waits in a lane and belongs elsewhere now.

        A broker that is up takes what is left of areas that went to another one;
        behind one that is down it would wait as long as the broker keeps an area.
        """
        known = {entry.broker_info for entry in self._table.brokers}
        is_gone = broker is not None and broker not in known
        if is_gone:
            lane.retire()
        elif lane.is_up or not known:
            return
        moved, staying = 0, list[int]()
        while batch := lane.queue.lease(REROUTE_BATCH):
            homes = [responsible_broker(self._table.brokers, m.topic) for m in batch]
            goers = [
                message
                for message, home in zip(batch, homes, strict=True)
                if is_gone or home not in {broker, None}
            ]
            self._put([_again(m, lane.queue.age_s(m)) for m in goers])
            gone = [message.seq for message in goers]
            lane.queue.ack(gone)
            staying += {message.seq for message in batch}.difference(gone)
            moved += len(goers)
        lane.queue.release(staying)
        if is_gone:
            self._lanes.pop(broker).queue.close()
        elif lane.uplink is not None:
            lane.uplink.wake()
        if moved:
            log.info(
                "%d messages moved from the lane to %s", moved, broker or "nowhere"
            )


def _again(message: Message, age_s: float | None) -> Draft:
    payload = message.payload
    return Draft(
        message.priority, message.topic, lambda _id: payload, message.id, age_s or 0.0
    )


def _new(ids: Sequence[MessageId | None]) -> int:
    return len(ids) - ids.count(None)


def _words(lane: Lane, now_s: float) -> str:
    link = link_words(lane.uplink, now_s) if lane.uplink else "without a broker"
    return f"{link}, {depth_words(lane.queue.stats(), lane.queue.oldest_s())}"

"""Recent messages: those that take the overlay too if their broker is lost."""

import logging
import math
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from edge_agent.queue.base import MessageDraft

log = logging.getLogger(__name__)

RECENT_S = 60.0
"""How long stored messages are remembered: a lost broker may be noticed that late."""

MAX_RECENT = 1000
"""Remembered messages of each priority, so that none displaces a more urgent one."""


class BrokerReachability(Protocol):
    """Connection state of a broker: an uplink."""

    unserved_since_s: float | None


class RecentMessage(NamedTuple):
    """A message that was stored for a broker; None when no broker is known."""

    draft: MessageDraft
    broker: BrokerReachability | None
    at_s: float


class RecentMessages:
    """Messages of the last `RECENT_S`; any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._messages: dict[int, deque[RecentMessage]] = defaultdict(deque)
        self._logged_s = -math.inf

    def add(self, messages: Iterable[RecentMessage]) -> None:
        """Add messages; drop and log the oldest of a priority when there are many."""
        with self._lock:
            for each in messages:
                line = self._messages[each.draft.priority]
                line.append(each)
                if len(line) > MAX_RECENT:
                    self._log_dropped(line.popleft(), each.at_s)

    def pop_lost(
        self, now_s: float, is_lost: Callable[[BrokerReachability | None], bool]
    ) -> list[MessageDraft]:
        """Remove and return those of lost brokers; forget those that are too old."""
        lost: list[MessageDraft] = []
        with self._lock:
            for priority, line in self._messages.items():
                recent = [each for each in line if now_s - each.at_s <= RECENT_S]
                lost += [each.draft for each in recent if is_lost(each.broker)]
                kept = (each for each in recent if not is_lost(each.broker))
                self._messages[priority] = deque(kept)
        return lost

    def _log_dropped(self, oldest: RecentMessage, now_s: float) -> None:
        if now_s - oldest.at_s <= RECENT_S <= now_s - self._logged_s:
            self._logged_s = now_s
            log.warning(
                "more than %d messages of priority %d within %.0f s: the oldest do not "
                "take the overlay if their broker is lost now",
                MAX_RECENT,
                oldest.draft.priority,
                RECENT_S,
            )

"""The nearest gateway: asked of the Managers, remembered for an offline start.

Source: Gamma (seed 000) section 3.2.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from edge_agent.uplink.uplink import Uplink, failover
from spatial_mqtt.directory import Entry, decode_gateways, rank_gateways
from spatial_mqtt.endpoint import Endpoint
from spatial_mqtt.errors import BrokerError, DirectoryError
from spatial_mqtt.topics import GATEWAY_INFO

log = logging.getLogger(__name__)

FAILOVER_AFTER_S = 10.0
LOOK_EVERY_S = 0.5

Fetch = Callable[[Endpoint, str], bytes]
Shuffle = Callable[[list[Entry]], None]


class Candidates(Protocol):
    """Knows which gateways may serve us, best first."""

    def ranked(self) -> list[Endpoint]:
        """Gateways, best first; empty when none is known."""


@dataclass(frozen=True)
class FixedGateway:
    """The one gateway that the settings name."""

    endpoint: Endpoint

    def ranked(self) -> list[Endpoint]:
        """See `Candidates`."""
        return [self.endpoint]


@dataclass(frozen=True)
class ManagedGateways:
    """Gateways that the Managers list, ranked for a topic.

    Attributes:
        managers: Asked in turn until one answers.
        topic: Topic of our cell.
        cache: File that keeps the last answer for a start without network.
        fetch: Takes one retained message from a broker.
        shuffle: Spreads nodes over gateways with the same area.
    """

    managers: Sequence[Endpoint]
    topic: str
    cache: Path
    fetch: Fetch
    shuffle: Shuffle

    def ranked(self) -> list[Endpoint]:
        """See `Candidates`."""
        for manager in self.managers:
            try:
                payload = self.fetch(manager, GATEWAY_INFO)
                entries = decode_gateways(payload)
            except (BrokerError, DirectoryError) as error:
                log.warning("manager %s: %s", manager, error)
                continue
            if entries:
                self._remember(payload)
                return self._rank(entries, manager.tls)
        return self._recalled()

    def _recalled(self) -> list[Endpoint]:
        try:
            entries = decode_gateways(self.cache.read_bytes())
        except (OSError, DirectoryError) as error:
            log.warning("no manager answers and no list is remembered: %s", error)
            return []
        return self._rank(entries, self.managers[0].tls)

    def _rank(self, entries: Sequence[Entry], tls: bool) -> list[Endpoint]:
        ranked = rank_gateways(entries, self.topic, self.shuffle)
        return [Endpoint(broker.host, broker.port, tls) for broker in ranked]

    def _remember(self, payload: bytes) -> None:
        fresh = self.cache.with_suffix(".new")
        try:
            fresh.write_bytes(payload)
            fresh.replace(self.cache)
        except OSError as error:
            log.warning("the gateway list cannot be remembered: %s", error)


def keep_connected(
    uplink: Uplink,
    candidates: Candidates,
    stop: threading.Event,
    clock: Callable[[], float],
) -> None:
    """Choose a gateway, and another one when it stays away, until told to stop."""
    chosen_at_s = -FAILOVER_AFTER_S
    while not stop.is_set():
        if _needs_another(uplink, chosen_at_s, clock()):
            ranked = candidates.ranked()
            if ranked:
                _change(uplink, failover(ranked, uplink.endpoint))
                chosen_at_s = clock()
        stop.wait(LOOK_EVERY_S)


def _needs_another(uplink: Uplink, chosen_at_s: float, now_s: float) -> bool:
    """Whether no gateway is chosen, or the chosen one has been away too long."""
    if uplink.endpoint is None:
        return True
    down_since_s = uplink.down_since_s
    if down_since_s is None:
        return False
    return now_s - max(down_since_s, chosen_at_s) >= FAILOVER_AFTER_S


def _change(uplink: Uplink, chosen: Endpoint) -> None:
    if chosen != uplink.endpoint:
        log.info("gateway chosen: %s", chosen)
        uplink.use(chosen)

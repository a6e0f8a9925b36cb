"""Gateway selection: nearest first from the Managers' list, with failover.

The list is cached in a file for a start without network.

Source: Gamma (seed 000) section 3.2.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

from service_runtime.files import write_atomic
from service_runtime.tls import Endpoint
from service_runtime.watchdog import Heartbeat, no_heartbeat
from spatial_mqtt.custody import CustodyOffer
from spatial_mqtt.directory import BrokerEntry, decode_gateways, rank_gateways
from spatial_mqtt.errors import BrokerError, DirectoryError, ReceiptError
from spatial_mqtt.topics import GATEWAY_INFO, OFFER_FILTER

log = logging.getLogger(__name__)

FetchRetained = Callable[[Endpoint, str, float], bytes]
"""Fetches one retained message of a broker on a topic, within some seconds."""

FETCH_TIMEOUT_S, MAX_FETCH_TIMEOUT_S = 5.0, 30.0
"""First and longest time that a broker has to send a retained message. A connection
with TLS takes more than the first one below 8 kbps."""


class GatewaySource(Protocol):
    """Source of gateways and of their health."""

    def cached_gateways(self) -> list[Endpoint]:
        """Gateways that are known without the network, best first."""

    def ranked_gateways(self) -> list[Endpoint]:
        """Gateways, best first; empty when none is known. It may take minutes."""

    def is_healthy(self, gateway: Endpoint) -> bool:
        """Whether a gateway answers and its store is online. It may take seconds."""


@dataclass(frozen=True)
class FixedGateway:
    """A single gateway from the settings."""

    endpoint: Endpoint

    def cached_gateways(self) -> list[Endpoint]:
        return [self.endpoint]

    def ranked_gateways(self) -> list[Endpoint]:
        return [self.endpoint]

    def is_healthy(self, gateway: Endpoint) -> bool:
        return True


@dataclass
class ManagedGateways:
    """Gateways from the Managers' list, ranked for a topic.

    Attributes:
        managers: Tried in order until one answers.
        topic: Topic of the node's cell.
        cache: File with the last list, for a start without network.
        fetch: Fetches lists and offers. It has twice as long each time that no Manager
            has given a list.
        node: Node id; its hash distributes nodes over the gateways of an area, always
            in the same way.
    """

    managers: Sequence[Endpoint]
    topic: str
    cache: Path
    fetch: FetchRetained
    node: str
    _timeout_s: float = field(default=FETCH_TIMEOUT_S, init=False)
    _stored: bytes | None = field(default=None, init=False)
    _is_write_failing: bool = field(default=False, init=False)

    def cached_gateways(self) -> list[Endpoint]:
        try:
            entries = decode_gateways(self.cache.read_bytes())
        except (OSError, DirectoryError) as error:
            log.warning("no list of gateways is cached: %s", error)
            return []
        return self.rank(entries, self.managers[0].tls)

    def ranked_gateways(self) -> list[Endpoint]:
        for manager in self.managers:
            try:
                payload = self.fetch(manager, GATEWAY_INFO, self._timeout_s)
                entries = decode_gateways(payload)
            except (BrokerError, DirectoryError) as error:
                log.warning("manager %s: %s", manager, error)
                continue
            if entries:
                self._store(payload)
                return self.rank(entries, manager.tls)
        self._timeout_s = min(MAX_FETCH_TIMEOUT_S, 2 * self._timeout_s)
        return self.cached_gateways()

    def is_healthy(self, gateway: Endpoint) -> bool:
        try:
            payload = self.fetch(gateway, OFFER_FILTER, self._timeout_s)
            return not CustodyOffer.decode(payload).is_offline
        except (BrokerError, ReceiptError) as error:
            log.debug("gateway %s: %s", gateway, error)
            return False

    def _store(self, payload: bytes) -> None:
        """Store a list that has changed; log only the first of several failures."""
        if payload == self._stored:
            return
        try:
            write_atomic(self.cache, payload)
        except OSError as error:
            if not self._is_write_failing:
                log.error("cannot write %s: %s", self.cache, error)  # noqa: TRY400
            self._is_write_failing = True
        else:
            self._stored, self._is_write_failing = payload, False

    def rank(self, entries: Sequence[BrokerEntry], tls: bool) -> list[Endpoint]:
        """Gateways of a list, best first, with TLS if the Manager uses it."""
        ranked = rank_gateways(entries, self.topic, self._sort_by_hash)
        return [Endpoint(broker.host, broker.port, tls) for broker in ranked]

    def _sort_by_hash(self, entries: list[BrokerEntry]) -> None:
        def hash_of(entry: BrokerEntry) -> bytes:
            text = f"{self.node} {entry.broker_info}".encode()
            return blake2b(text, digest_size=8).digest()

        entries.sort(key=hash_of)


class SwitchableUplink(Protocol):
    """The part of an uplink that gateway selection uses."""

    @property
    def endpoint(self) -> Endpoint | None:
        """The gateway in use."""

    @property
    def unserved_since_s(self) -> float | None:
        """Monotonic time since when no gateway accepts messages; None if one does."""

    def switch_to(self, endpoint: Endpoint) -> None:
        """Switch to another gateway."""


@dataclass(frozen=True)
class FailoverTimeouts:
    """Timeouts of failover and of the return to a better gateway.

    Attributes:
        failover_s: Time without service before the next gateway is tried.
        max_failover_s: Longest such time: it doubles after each round of all gateways
            without service, because a connection may take longer on a slow link.
        check_interval_s: Time between checks of the list and of better gateways.
        min_healthy_checks: Consecutive successful checks that a better gateway needs.
    """

    failover_s: float = 4.0
    max_failover_s: float = 30.0
    check_interval_s: float = 60.0
    min_healthy_checks: int = 2


POLL_S = 0.25

STABLE_S = 3600.0
"""Time of use after which a return to a gateway was right: it has stored something."""

MAX_DOUBLINGS = 5
"""Most times that the number of checks doubles after returns that failed: an hour."""


class GatewaySelector:
    """Selects a gateway, fails over to the next, and returns to a better one.

    Fetching lists and checking gateways takes seconds and has its own thread
    (`run_checks`); `decide` does not block.

    Args:
        uplink: Uses the selected gateway.
        source: Where the gateways come from.
        stop: Ends both loops.
        clock: Monotonic seconds.
        timeouts: When to switch.
    """

    def __init__(
        self,
        uplink: SwitchableUplink,
        source: GatewaySource,
        stop: threading.Event,
        clock: Callable[[], float],
        timeouts: FailoverTimeouts | None = None,
    ) -> None:
        self._uplink = uplink
        self._source = source
        self._stop = stop
        self._clock = clock
        self._timeouts = timeouts or FailoverTimeouts()
        self._ranked: list[Endpoint] = []
        self._healthy_checks: Counter[Endpoint] = Counter()
        self._failed_returns: Counter[Endpoint] = Counter()
        self._is_return = False
        self._failovers = 0
        self._chosen_at_s = -self._timeouts.failover_s
        self._check_soon = threading.Event()

    def run_checks(self, beat: Heartbeat = no_heartbeat) -> None:
        """Refresh the list and check better gateways, until stopped."""
        self._ranked = self._source.cached_gateways()
        while not self._stop.is_set():
            beat()
            ranked = self._source.ranked_gateways()
            if ranked:
                self._ranked = ranked
            self._check_better(beat)
            self._check_soon.clear()
            self._wait_for_next_check()

    def run(self, beat: Heartbeat = no_heartbeat) -> None:
        """Call `decide` periodically, until stopped."""
        while not self._stop.is_set():
            beat()
            self.decide()
            self._stop.wait(POLL_S)

    def decide(self) -> None:
        """Change the gateway if the current one failed or a better one is healthy."""
        now_s, current = self._clock(), self._uplink.endpoint
        if not self._ranked:
            return
        if current is None:
            self._change(self._ranked[0], "first", now_s)
        elif self._has_failed(now_s):
            self._healthy_checks.clear()
            self._check_soon.set()
            self._note_failure(current, now_s)
            self._failovers += 1
            self._change(self._after(current), f"{current} does not serve", now_s)
        elif better := self._healthy_better(current):
            self._change(better, f"nearer than {current}, healthy again", now_s)
            self._is_return = True

    def _has_failed(self, now_s: float) -> bool:
        since_s = self._uplink.unserved_since_s
        if since_s is None:
            self._failovers = 0
            return False
        rounds = min(self._failovers // len(self._ranked), MAX_DOUBLINGS)
        timeouts = self._timeouts
        limit_s = min(timeouts.failover_s * 2.0**rounds, timeouts.max_failover_s)
        return now_s - max(since_s, self._chosen_at_s) >= limit_s

    def _after(self, current: Endpoint) -> Endpoint:
        """The next in rank; after the last or an unlisted one, the first."""
        ranked = self._ranked
        at = ranked.index(current) + 1 if current in ranked else 0
        return ranked[at % len(ranked)]

    def _better(self, current: Endpoint) -> list[Endpoint]:
        ranked = self._ranked
        return ranked[: ranked.index(current)] if current in ranked else ranked[:1]

    def _healthy_better(self, current: Endpoint) -> Endpoint | None:
        """A better gateway with enough checks: twice as many after a failed return.

        A check finds the offer of a gateway that may not store anything.
        """
        for gateway in self._better(current):
            doublings = min(self._failed_returns[gateway], MAX_DOUBLINGS)
            required = self._timeouts.min_healthy_checks * 2**doublings
            if self._healthy_checks[gateway] >= required:
                return gateway
        return None

    def _note_failure(self, current: Endpoint, now_s: float) -> None:
        """Count a return to a gateway that failed soon."""
        if now_s - self._chosen_at_s >= STABLE_S:
            self._failed_returns.pop(current, None)
        elif self._is_return:
            self._failed_returns[current] += 1

    def _check_better(self, beat: Heartbeat) -> None:
        current = self._uplink.endpoint
        if current is None or self._uplink.unserved_since_s is not None:
            return
        for gateway in self._better(current):
            beat()
            if self._source.is_healthy(gateway):
                self._healthy_checks[gateway] += 1
            else:
                self._healthy_checks[gateway] = 0

    def _wait_for_next_check(self) -> None:
        """Wait; after a failure, for a shorter time."""
        timeouts = self._timeouts
        until_s = self._clock() + (
            timeouts.check_interval_s if self._ranked else timeouts.failover_s
        )
        while not self._stop.wait(POLL_S) and self._clock() < until_s:
            if self._check_soon.is_set():
                self._check_soon.clear()
                until_s = min(until_s, self._clock() + timeouts.failover_s)

    def _change(self, chosen: Endpoint, reason: str, now_s: float) -> None:
        self._chosen_at_s, self._is_return = now_s, False
        if chosen != self._uplink.endpoint:
            log.info("gateway chosen: %s (%s)", chosen, reason)
            self._healthy_checks.clear()
            self._uplink.switch_to(chosen)

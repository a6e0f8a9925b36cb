"""The nearest gateway: asked of the Managers, remembered for an offline start.

Source: Gamma (seed 000) section 3.2.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

from service_runtime.tls import Endpoint
from service_runtime.watchdog import Beat, unheard
from spatial_mqtt.custody import Offer
from spatial_mqtt.directory import Entry, decode_gateways, rank_gateways
from spatial_mqtt.errors import BrokerError, DirectoryError, ReceiptError
from spatial_mqtt.topics import GATEWAY_INFO, OFFER_FILTER

log = logging.getLogger(__name__)

Fetch = Callable[[Endpoint, str], bytes]


class Candidates(Protocol):
    """Knows which gateways may serve us, best first."""

    def ranked(self) -> list[Endpoint]:
        """Gateways, best first; empty when none is known. May take seconds."""

    def is_well(self, gateway: Endpoint) -> bool:
        """Whether a gateway answers, with a store behind it. May take seconds."""


@dataclass(frozen=True)
class FixedGateway:
    """The one gateway that the settings name."""

    endpoint: Endpoint

    def ranked(self) -> list[Endpoint]:
        return [self.endpoint]

    def is_well(self, gateway: Endpoint) -> bool:
        """See `Candidates`: there is no other."""
        return True


@dataclass(frozen=True)
class ManagedGateways:
    """Gateways that the Managers list, ranked for a topic.

    Attributes:
        managers: Asked in turn until one answers.
        topic: Topic of our cell.
        cache: File that keeps the last answer for a start without network.
        fetch: Takes one retained message from a broker.
        node: Our id: it spreads nodes over gateways with the same area, each node
            always in the same way, so that none wanders without a reason.
    """

    managers: Sequence[Endpoint]
    topic: str
    cache: Path
    fetch: Fetch
    node: str

    def ranked(self) -> list[Endpoint]:
        for manager in self.managers:
            try:
                payload = self.fetch(manager, GATEWAY_INFO)
                entries = decode_gateways(payload)
            except (BrokerError, DirectoryError) as error:
                log.warning("manager %s: %s", manager, error)
                continue
            if entries:
                self._remember(payload)
                return self.rank(entries, manager.tls)
        return self._recalled()

    def is_well(self, gateway: Endpoint) -> bool:
        try:
            return not Offer.decode(self.fetch(gateway, OFFER_FILTER)).is_away
        except (BrokerError, ReceiptError) as error:
            log.debug("gateway %s: %s", gateway, error)
            return False

    def _recalled(self) -> list[Endpoint]:
        try:
            entries = decode_gateways(self.cache.read_bytes())
        except (OSError, DirectoryError) as error:
            log.warning("no manager answers and no list is remembered: %s", error)
            return []
        return self.rank(entries, self.managers[0].tls)

    def rank(self, entries: Sequence[Entry], tls: bool) -> list[Endpoint]:
        """Gateways of a list, best first; each is spoken to as its Manager is."""
        ranked = rank_gateways(entries, self.topic, self._spread)
        return [Endpoint(broker.host, broker.port, tls) for broker in ranked]

    def _spread(self, entries: list[Entry]) -> None:
        def lot(entry: Entry) -> bytes:
            words = f"{self.node} {entry.broker_info}".encode()
            return blake2b(words, digest_size=8).digest()

        entries.sort(key=lot)

    def _remember(self, payload: bytes) -> None:
        fresh = self.cache.with_suffix(".new")
        try:
            fresh.write_bytes(payload)
            fresh.replace(self.cache)
        except OSError as error:
            log.warning("the gateway list cannot be remembered: %s", error)


class Served(Protocol):
    """What a choice asks of an uplink, and tells it."""

    @property
    def endpoint(self) -> Endpoint | None:
        """The gateway in use."""

    @property
    def unserved_since_s(self) -> float | None:
        """Since when nobody takes our messages; None while somebody does."""

    def use(self, endpoint: Endpoint) -> None:
        """Use another gateway from now on."""


@dataclass(frozen=True)
class Patience:
    """How long to stay with a gateway.

    Attributes:
        failover_s: Unserved for so long, we try the next one.
        look_s: Between two looks at the list and at better gateways.
        proofs: How many looks in a row a better gateway must be well.
    """

    failover_s: float = 4.0
    look_s: float = 60.0
    proofs: int = 2


POLL_S = 0.25


class Choice:
    """Chooses a gateway; another one when it fails; the better one when it is back.

    Looking at Managers and gateways takes seconds, so it has a thread of its own
    (`look`); deciding (`decide`) never waits.

    Args:
        uplink: Uses what is chosen.
        candidates: Who may be chosen.
        stop: Ends both loops.
        clock: Monotonic seconds.
        patience: How long to stay.
    """

    def __init__(
        self,
        uplink: Served,
        candidates: Candidates,
        stop: threading.Event,
        clock: Callable[[], float],
        patience: Patience | None = None,
    ) -> None:
        self._uplink = uplink
        self._candidates = candidates
        self._stop = stop
        self._clock = clock
        self._patience = patience or Patience()
        self._ranked: list[Endpoint] = []
        self._proofs: dict[Endpoint, int] = {}
        self._chosen_at_s = -self._patience.failover_s
        self._wants_look = threading.Event()

    def look(self, beat: Beat = unheard) -> None:
        """Keep the list and the health of better gateways, until told to stop."""
        while not self._stop.is_set():
            beat()
            ranked = self._candidates.ranked()
            if ranked:
                self._ranked = ranked
            self._prove_better_ones()
            self._wants_look.clear()
            self._wait_for_next_look()

    def run(self, beat: Beat = unheard) -> None:
        """Decide, until told to stop."""
        while not self._stop.is_set():
            beat()
            self.decide()
            self._stop.wait(POLL_S)

    def decide(self) -> None:
        """Change the gateway if there is a reason to."""
        now_s, current = self._clock(), self._uplink.endpoint
        if not self._ranked:
            return
        if current is None:
            self._change(self._ranked[0], "first", now_s)
        elif self._has_failed(now_s):
            self._proofs.clear()
            self._wants_look.set()
            self._change(self._after(current), f"{current} does not serve", now_s)
        elif better := self._proven(current):
            self._change(better, f"nearer than {current}, and well again", now_s)

    def _has_failed(self, now_s: float) -> bool:
        since_s = self._uplink.unserved_since_s
        if since_s is None:
            return False
        return now_s - max(since_s, self._chosen_at_s) >= self._patience.failover_s

    def _after(self, current: Endpoint) -> Endpoint:
        """The next in rank; after the last, or from an unknown one, the first."""
        ranked = self._ranked
        at = ranked.index(current) + 1 if current in ranked else 0
        return ranked[at % len(ranked)]

    def _better(self, current: Endpoint) -> list[Endpoint]:
        ranked = self._ranked
        return ranked[: ranked.index(current)] if current in ranked else ranked[:1]

    def _proven(self, current: Endpoint) -> Endpoint | None:
        enough = self._patience.proofs
        better = self._better(current)
        return next((g for g in better if self._proofs.get(g, 0) >= enough), None)

    def _prove_better_ones(self) -> None:
        current = self._uplink.endpoint
        if current is None or self._uplink.unserved_since_s is not None:
            return
        for gateway in self._better(current):
            is_well = self._candidates.is_well(gateway)
            self._proofs[gateway] = self._proofs.get(gateway, 0) + 1 if is_well else 0

    def _wait_for_next_look(self) -> None:
        """Rest; a failure wants the list sooner, but not in a tight loop."""
        until_s = self._clock() + (
            self._patience.look_s if self._ranked else self._patience.failover_s
        )
        while not self._stop.wait(POLL_S) and self._clock() < until_s:
            if self._wants_look.is_set():
                self._wants_look.clear()
                until_s = min(until_s, self._clock() + self._patience.failover_s)

    def _change(self, chosen: Endpoint, why: str, now_s: float) -> None:
        self._chosen_at_s = now_s
        if chosen != self._uplink.endpoint:
            log.info("gateway chosen: %s (%s)", chosen, why)
            self._proofs.clear()
            self._uplink.use(chosen)

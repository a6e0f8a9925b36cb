"""Puts a gateway's part of the overlay together."""

import logging
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edge_agent.queue.base import Draft, Queue
from gateway_daemon.config import GatewaySettings, info_of
from gateway_daemon.gateway.detour import Detour, Rules
from gateway_daemon.gateway.memory import remember
from gateway_daemon.gateway.neighbours import Neighbours, store_in
from gateway_daemon.overlay.live import Live, Surroundings
from gateway_daemon.overlay.measures import measures_of
from gateway_daemon.overlay.names import Name
from gateway_daemon.overlay.node import Node
from gateway_daemon.overlay.post import Connect, Post
from gateway_daemon.part import Part
from spatial_mqtt.directory import Entry, decode_gateways, encode
from spatial_mqtt.endpoint import Endpoint
from spatial_mqtt.errors import DirectoryError
from spatial_mqtt.metrics import Metric
from spatial_mqtt.pulse import Pulse

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Overlay:
    """A gateway's part of the overlay; without peers there is none.

    Attributes:
        detour: The way round brokers.
        live: Runs beside the gateway.
        directory: Keeps what Managers say of where the others are; None without.
    """

    detour: Detour | None = None
    live: Live | None = None
    directory: Path | None = None

    @property
    def parts(self) -> Sequence[Part]:
        """What runs beside the gateway."""
        return [self.live] if self.live is not None else []

    def measures(self) -> Iterable[Metric]:
        """What it tells Prometheus."""
        if self.live is None or self.detour is None:
            return ()
        return measures_of(self.live.facts, self.detour.waiting)

    def listed(self, gateways: Sequence[Entry]) -> None:
        """A Manager says who is there."""
        if self.live is not None and self.directory is not None:
            self.live.listed([entry.broker_info for entry in gateways])
            remember(self.directory, encode(gateways))

    def also(
        self, listen: Callable[[frozenset[str]], None]
    ) -> Callable[[frozenset[str]], None]:
        """Tell the overlay, too, what our clients listen to."""

        def both(filters: frozenset[str]) -> None:
            listen(filters)
            if self.live is not None:
                self.live.listen(filters)

        return both


def detour_of(
    settings: GatewaySettings, queue: Callable[[], Queue], pulse: Pulse
) -> Detour | None:
    """The way round brokers, if the settings name peers."""
    section = settings.overlay
    if not section.peers and not section.from_managers:
        return None
    rules = Rules(
        settings.gateway.route == "overlay",
        section.from_priority,
        section.out_of_reach_s,
    )
    return Detour(queue(), rules, pulse.clock)


def overlay_of(
    settings: GatewaySettings,
    detour: Detour | None,
    take: Callable[[Sequence[Draft]], bool],
    connect: Connect,
    pulse: Pulse,
) -> Overlay:
    """A part in the overlay for who has a detour.

    Args:
        settings: Of the gateway.
        detour: Where messages wait for the overlay.
        take: Stores what our clients are to hear.
        connect: Makes connections.
        pulse: Listens to our loop.
    """
    if detour is None:
        return Overlay()
    gateway, section = settings.gateway, settings.overlay
    public = info_of(gateway.public or gateway.broker)
    name = Name(section.place or "", public, gateway.id)
    # One list may serve all gateways. With certificates a link to our own public
    # address would take the session of our front: both have the certificate's name.
    peers = tuple(each for each in map(info_of, section.peers) if each != public)
    own = Endpoint.parse(gateway.broker)
    live = Live(
        Surroundings(name, peers, section.rate_bytes_per_s),
        Node(str(name), random.Random().choice),  # noqa: S311 - chance meetings
        lambda later: Post(gateway.id, own, connect, later),
        store_in(take),
        pulse=pulse,
    )
    Neighbours(live, detour)
    directory = Path(gateway.data) / "gateways.json" if section.from_managers else None
    if directory is not None:
        live.listed(entry.broker_info for entry in _recalled(directory))
    return Overlay(detour, live, directory)


def _recalled(path: Path) -> Sequence[Entry]:
    try:
        return decode_gateways(path.read_bytes())
    except FileNotFoundError:
        return ()
    except (OSError, DirectoryError) as error:
        log.warning("the last list of gateways cannot be used: %s", error)
        return ()

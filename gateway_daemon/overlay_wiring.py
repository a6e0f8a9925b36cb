"""Puts a gateway's part of the overlay together."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edge_agent.queue.base import Draft, Queue
from gateway_daemon.config import GatewaySettings, info_of
from gateway_daemon.gateway.detour import Detour, Rules
from gateway_daemon.gateway.neighbours import Neighbours, store_in
from gateway_daemon.overlay.live import Live, Surroundings
from gateway_daemon.overlay.names import Name
from gateway_daemon.overlay.node import Node
from gateway_daemon.overlay.post import Connect, Post
from gateway_daemon.part import Part
from spatial_mqtt.endpoint import Endpoint
from spatial_mqtt.pulse import Pulse


@dataclass(frozen=True)
class Overlay:
    """A gateway's part of the overlay; without peers there is none.

    Attributes:
        detour: The way round brokers.
        live: Runs beside the gateway.
    """

    detour: Detour | None = None
    live: Live | None = None

    @property
    def parts(self) -> Sequence[Part]:
        """What runs beside the gateway."""
        return [self.live] if self.live is not None else []

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
    if not section.peers:
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
    return Overlay(detour, live)

"""How long a gateway counts as there without saying so again. No I/O.

A last will tells at once, but only a Manager that listens in that moment. A lease
also ends when nobody heard the will.
"""

import math

from spatial_mqtt.directory import BrokerInfo, Here

BEATS = 3
"""So many words of a gateway may be lost in a row."""


class Leases:
    """Gateways that promised to speak again, by the broker where they speak."""

    def __init__(self) -> None:
        self._until_s: dict[BrokerInfo, dict[object, float]] = {}

    def renew(self, here: Here, where: object, now_s: float) -> None:
        """A gateway spoke."""
        ends_s = now_s + BEATS * here.every_s if here.every_s else math.inf
        self._until_s.setdefault(here.broker_info, {})[where] = ends_s

    def end(self, gateway: BrokerInfo, where: object) -> bool:
        """A gateway said goodbye somewhere; whether it is nowhere else."""
        held = self._until_s.get(gateway, {})
        held.pop(where, None)
        if not held:
            self._until_s.pop(gateway, None)
        return not held

    def leave(self, where: object) -> None:
        """We listen there no longer."""
        for held in self._until_s.values():
            held.pop(where, None)

    def expired(self, now_s: float) -> list[BrokerInfo]:
        """Gateways that have kept silent too long; they are forgotten here."""
        gone = [
            gateway
            for gateway, held in self._until_s.items()
            if all(until_s <= now_s for until_s in held.values())
        ]
        for gateway in gone:
            del self._until_s[gateway]
        return gone

"""Health probes: periodic checks whether gateways and brokers accept connections.

Gateways of this product leave a last will. Gamma's gateways and plain brokers do not,
so only a probe detects that they are down.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from gateway_daemon.manager.registry import Registry
from service_runtime.lifecycle import start_loop
from service_runtime.watchdog import Beat, Pulse, unheard
from spatial_mqtt.directory import BrokerInfo

EVERY_S = 10.0
SILENCE_S = 60.0
LOST_AFTER = 3
"""So many looks in a row without answer: one lost packet moves nobody."""


@dataclass(frozen=True)
class Finding:
    """Somebody stopped answering, or answers again."""

    who: BrokerInfo
    is_well: bool


class Probes:
    """Looks at everybody in a registry, in a thread of its own.

    Args:
        answers: Whether somebody listens at an address; may take seconds.
        pulse: Listens to our loop.
        every_s: Time between two looks.
    """

    def __init__(
        self,
        answers: Callable[[BrokerInfo], bool],
        pulse: Pulse,
        every_s: float = EVERY_S,
    ) -> None:
        self._pulse = pulse
        self._answers = answers
        self._every_s = every_s
        self._stop = threading.Event()
        self._targets: frozenset[BrokerInfo] = frozenset()
        self._silent: dict[BrokerInfo, int] = {}

    def look_at(self, registry: Registry) -> None:
        """Look at these from now on: brokers, and gateways that say no goodbye.

        Those that do may stand where only their clients reach them. One that speaks
        to another Manager only is that Manager's to look at, while it can.
        """
        brokers = {entry.broker_info for entry in registry.brokers}
        others = registry.vouched - registry.heard
        mute = registry.areas.keys() - registry.faithful - others
        self._targets = frozenset(brokers | mute)

    def start(self, tell: Callable[[Finding], object]) -> None:
        """Begin to look.

        Args:
            tell: Takes findings; called in the thread of the probes.
        """
        start_loop(self._pulse, "probes", SILENCE_S, lambda beat: self._run(tell, beat))

    def stop(self) -> None:
        """Look no more."""
        self._stop.set()

    def look(self, beat: Beat = unheard) -> list[Finding]:
        """One look at everybody; what changed by it."""
        findings = []
        for who in sorted(self._targets):
            beat()
            silent = self._silent.get(who, 0)
            if self._answers(who):
                self._silent[who] = 0
                if silent >= LOST_AFTER:
                    findings.append(Finding(who, is_well=True))
            else:
                self._silent[who] = silent + 1
                if silent + 1 == LOST_AFTER:
                    findings.append(Finding(who, is_well=False))
        return findings

    def _run(self, tell: Callable[[Finding], object], beat: Beat) -> None:
        while not self._stop.wait(self._every_s):
            beat()
            for finding in self.look(beat):
                tell(finding)

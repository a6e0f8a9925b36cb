"""Looks whether gateways and brokers answer, also those that cannot say goodbye.

Our own gateways leave a last will; Gamma's and plain brokers leave nothing.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from gateway_daemon.manager.registry import Registry
from spatial_mqtt.directory import BrokerInfo

EVERY_S = 10.0
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
        every_s: Time between two looks.
    """

    def __init__(
        self, answers: Callable[[BrokerInfo], bool], every_s: float = EVERY_S
    ) -> None:
        self._answers = answers
        self._every_s = every_s
        self._stop = threading.Event()
        self._targets: frozenset[BrokerInfo] = frozenset()
        self._silent: dict[BrokerInfo, int] = {}

    def look_at(self, registry: Registry) -> None:
        """Look at these from now on: brokers, and gateways that say no goodbye.

        Those that do may stand where only their clients reach them.
        """
        brokers = {entry.broker_info for entry in registry.brokers}
        mute = registry.areas.keys() - registry.faithful
        self._targets = frozenset(brokers | mute)

    def start(self, tell: Callable[[Finding], object]) -> None:
        """Begin to look.

        Args:
            tell: Takes findings; called in the thread of the probes.
        """
        threading.Thread(
            target=self._run, args=(tell,), name="probes", daemon=True
        ).start()

    def stop(self) -> None:
        """Look no more."""
        self._stop.set()

    def look(self) -> list[Finding]:
        """One look at everybody; what changed by it."""
        findings = []
        for who in sorted(self._targets):
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

    def _run(self, tell: Callable[[Finding], object]) -> None:
        while not self._stop.wait(self._every_s):
            for finding in self.look():
                tell(finding)

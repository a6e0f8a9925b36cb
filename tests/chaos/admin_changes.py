"""Changes that administrators make at Managers that cannot reach each other."""

import time
from collections.abc import Mapping
from pathlib import Path

from programs import Client

from gateway_daemon.manager import storage
from service_runtime.tls import Endpoint
from spatial_mqtt.directory import BrokerEntry, BrokerInfo, encode_directory_message
from spatial_mqtt.topics import BROKER_ADD, BROKER_REMOVE
from spatial_mqtt.transport import Publication

SEEN_WITHIN_S = 10.0


class AdminChanges:
    """Makes different changes at each Manager and records them.

    A change counts once the Manager's file holds it; one that is lost with a broker
    before that was never acknowledged.

    Args:
        managers: Brokers of the Managers by registry file.
        broker: Broker that the changes assign to areas.
    """

    def __init__(self, managers: Mapping[Path, Endpoint], broker: BrokerInfo) -> None:
        self._broker = broker
        self._clients = {
            path: Client(at, f"admin-{path.parent.name}")
            for path, at in managers.items()
        }
        self._additions: dict[Path, list[BrokerEntry]] = {path: [] for path in managers}
        self._removals: dict[Path, set[str]] = {path: set() for path in managers}
        self._round = 0
        self.added: set[str] = set()
        self.removed: set[str] = set()

    def publish(self) -> None:
        """At each Manager, add an area and remove those of the other one."""
        self._round += 1
        for number, (path, client) in enumerate(self._clients.items()):
            live = areas(path)
            for entry in self._of_others(path):
                if entry.topic in live & self.added:
                    self._removals[path].add(entry.topic)
                    self._publish(client, BROKER_REMOVE, entry)
            entry = BrokerEntry(_area(number, self._round), self._broker)
            self._additions[path].append(entry)
            self._publish(client, BROKER_ADD, entry)

    def record(self) -> None:
        """Record which changes have reached the registry files."""
        for path in self._clients:
            live = areas(path)
            self.added |= live & {entry.topic for entry in self._additions[path]}
            self.removed |= self._removals[path] - live
        self.added -= self.removed

    def contradictions(self) -> list[str]:
        """Areas on which the Managers disagree, or that they lost; waits a while."""
        until_s = time.monotonic() + 6 * SEEN_WITHIN_S
        while (found := self._contradictions()) and time.monotonic() < until_s:
            time.sleep(0.5)
        return found

    def close(self) -> None:
        """Disconnect."""
        for client in self._clients.values():
            client.connection.stop()

    def _contradictions(self) -> list[str]:
        live = [areas(path) for path in self._clients]
        known = live[0]
        # A removal may take effect after the last `record`.
        requested = {topic for removed in self._removals.values() for topic in removed}
        return [
            *(f"{each} is known to one" for each in sorted(live[0] ^ live[1])),
            *(f"{each} is lost" for each in sorted(self.added - known - requested)),
            *(f"{each} is back" for each in sorted(self.removed & known)),
        ]

    def _of_others(self, path: Path) -> list[BrokerEntry]:
        return [
            entry
            for other, entries in self._additions.items()
            if other != path
            for entry in entries
        ]

    @staticmethod
    def _publish(client: Client, topic: str, entry: BrokerEntry) -> None:
        client.connection.publish(Publication(topic, encode_directory_message(entry)))


def areas(path: Path) -> set[str]:
    """Areas that have a broker in a Manager's registry file."""
    return {entry.topic for entry in storage.load_registry(path).brokers}


def _area(number: int, round_: int) -> str:
    return f"/4/{number}" + "".join(f"/{round_ >> 2 * i & 3}" for i in range(6))

"""What administrators say to Managers that do not reach each other."""

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


class Words:
    """Says something else to each Manager, again and again, and remembers it.

    A word counts from when the Manager's file holds it: what dies with a broker before
    was never acknowledged.

    Args:
        managers: Brokers of the Managers, and their files.
        broker: What the words are about.
    """

    def __init__(self, managers: Mapping[Path, Endpoint], broker: BrokerInfo) -> None:
        self._broker = broker
        self._desks = {
            path: Client(at, f"desk-{path.parent.name}")
            for path, at in managers.items()
        }
        self._said: dict[Path, list[BrokerEntry]] = {path: [] for path in managers}
        self._taken: dict[Path, set[str]] = {path: set() for path in managers}
        self._round = 0
        self.added: set[str] = set()
        self.removed: set[str] = set()

    def say(self) -> None:
        """Each Manager is given an area, and the other one's area is taken away."""
        self._round += 1
        for number, (path, desk) in enumerate(self._desks.items()):
            live = areas(path)
            for entry in self._of_others(path):
                if entry.topic in live & self.added:
                    self._taken[path].add(entry.topic)
                    self._publish(desk, BROKER_REMOVE, entry)
            entry = BrokerEntry(_area(number, self._round), self._broker)
            self._said[path].append(entry)
            self._publish(desk, BROKER_ADD, entry)

    def note(self) -> None:
        """Remember which words are in a file."""
        for path in self._desks:
            live = areas(path)
            self.added |= live & {entry.topic for entry in self._said[path]}
            self.removed |= self._taken[path] - live
        self.added -= self.removed

    def contradictions(self) -> list[str]:
        """What the Managers do not agree on, or have forgotten; waits a while."""
        until_s = time.monotonic() + 6 * SEEN_WITHIN_S
        while (found := self._contradictions()) and time.monotonic() < until_s:
            time.sleep(0.5)
        return found

    def close(self) -> None:
        """Leave the desks."""
        for desk in self._desks.values():
            desk.connection.stop()

    def _contradictions(self) -> list[str]:
        live = [areas(path) for path in self._desks]
        known = live[0]
        # A word may be taken after the last look: what was asked may be gone.
        asked = {topic for taken in self._taken.values() for topic in taken}
        return [
            *(f"{each} is known to one" for each in sorted(live[0] ^ live[1])),
            *(f"{each} is forgotten" for each in sorted(self.added - known - asked)),
            *(f"{each} is back" for each in sorted(self.removed & known)),
        ]

    def _of_others(self, path: Path) -> list[BrokerEntry]:
        told = [said for other, said in self._said.items() if other != path]
        return [entry for said in told for entry in said]

    @staticmethod
    def _publish(desk: Client, topic: str, entry: BrokerEntry) -> None:
        desk.connection.publish(Publication(topic, encode_directory_message(entry)))


def areas(path: Path) -> set[str]:
    """Areas with a broker, in a Manager's file."""
    return {entry.topic for entry in storage.load_registry(path).brokers}


def _area(number: int, round_: int) -> str:
    return f"/4/{number}" + "".join(f"/{round_ >> 2 * i & 3}" for i in range(6))

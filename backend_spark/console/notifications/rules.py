"""Rules: who is notified of which event, and when."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from backend_spark.console.events import Event
from backend_spark.console.notifications.settings import (
    NotificationSection,
    QuietHours,
)
from slope_science.findings import DANGER
from spatial_mqtt.cells import Cell

DistrictsOf = Callable[[str], frozenset[str]]
"""Names of the districts in which a cell lies."""


def no_districts(*_: str) -> frozenset[str]:
    """No cell lies in a district, as without a gazetteer."""
    return frozenset()


def unknown_districts(
    sections: Iterable[NotificationSection], known: frozenset[str]
) -> dict[str, list[str]]:
    """Districts of rules that no place has, by the name of the rule."""
    unknown = {
        section.name: [name for name in section.districts if name not in known]
        for section in sections
    }
    return {rule: names for rule, names in unknown.items() if names}


def describe_unknown(unknown: Mapping[str, Sequence[str]]) -> list[str]:
    """A sentence for each rule with unknown districts."""
    return [
        f"districts of rule {rule} must be those of places, got {', '.join(names)}: "
        "correct the rule, or load these places (backend-spark places load)"
        for rule, names in unknown.items()
    ]


@dataclass(frozen=True)
class Target:
    """One address of a rule.

    Attributes:
        rule: Name of the rule.
        position: Position of the address in the rule, from 0.
    """

    rule: str
    position: int


@dataclass(frozen=True)
class Plan:
    """When to notify a target.

    Attributes:
        target: Of the notification.
        due_s: Unix time.
        only_open: Whether it is dropped if the event is not open any more by then, was
            reopened by a later rise, or a higher level was delivered to the target.
        address: Digest of the target's address, see `digest_of`.
        exercise: Whether it is about an exercise.
    """

    target: Target
    due_s: float
    only_open: bool
    address: str
    exercise: bool


@lru_cache(4096)
def digest_of(address: str) -> str:
    """What tells an address of the settings from others, without its secrets."""
    return hashlib.sha256(address.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class NotificationRules:
    """All rules of the settings.

    Attributes:
        sections: The rules.
        exercise: Whether past data are taken as the present.
        districts_of: Districts of a cell.
        known_districts: All districts of the places.
    """

    sections: tuple[NotificationSection, ...]
    exercise: bool
    districts_of: DistrictsOf = no_districts
    known_districts: Callable[[], frozenset[str]] = no_districts

    def plan(self, event: Event, level: int, now_s: float) -> Iterator[Plan]:
        """Notifications about a rise of an event to a level."""
        for section in self.sections:
            if not self._applies(section, event, level):
                continue
            wanted_s = now_s + 60.0 * section.unacknowledged_min
            due_s = wanted_s
            if section.quiet and level < DANGER:
                due_s = QuietHours.parse(section.quiet).end_s(wanted_s)
            only_open = section.unacknowledged_min > 0 or due_s > wanted_s
            for target, address in self.targets(section):
                yield Plan(target, due_s, only_open, address, self.exercise)

    def targets(self, section: NotificationSection) -> Iterator[tuple[Target, str]]:
        """The addresses of a rule with their digests."""
        for position, address in enumerate(section.to):
            yield Target(section.name, position), digest_of(address)

    def _applies(self, section: NotificationSection, event: Event, level: int) -> bool:
        if level < section.from_level or (self.exercise and not section.exercises):
            return False
        if not section.cells and not section.districts:
            return True
        if event.cell is not None and self._is_inside(section, event.cell):
            return True
        return level >= DANGER and self._is_place_unknown(section, event)

    def _is_place_unknown(self, section: NotificationSection, event: Event) -> bool:
        """Whether it is not known if an event is in the places of a rule.

        It is outside all cells, or no place has any of the rule's districts.
        """
        districts = set(section.districts)
        are_known = not districts or districts & self.known_districts()
        return event.cell is None or not are_known

    def _is_inside(self, section: NotificationSection, cell: str) -> bool:
        if self.districts_of(cell) & set(section.districts):
            return True
        place = Cell.from_token(cell)
        return any(Cell.from_token(token).contains(place) for token in section.cells)

    def unknown(self) -> dict[str, list[str]]:
        """Districts of rules that no place has, by the name of the rule."""
        return unknown_districts(self.sections, self.known_districts())

    def section(self, rule: str) -> NotificationSection | None:
        """The rule with a name."""
        return next((each for each in self.sections if each.name == rule), None)

    def place(
        self, target: Target, address: str, known: Callable[[str], set[str]]
    ) -> Target | None:
        """Where the address of a stored notification is in the settings now.

        An address that is new in the place of another is a correction of it.

        Args:
            target: Where it was.
            address: Its digest; empty for one that an earlier release stored.
            known: Digests of all addresses that a rule has had.

        Returns:
            None if it was removed.
        """
        section = self.section(target.rule)
        present = [] if section is None else list(map(digest_of, section.to))
        if address in present[target.position : target.position + 1]:
            return target
        if address in present:
            return Target(target.rule, present.index(address))
        if target.position >= len(present):
            return None
        if address and present[target.position] in known(target.rule):
            return None
        return target

    def address(self, target: Target) -> str | None:
        """Address of a target; None if the settings have it no more."""
        section = self.section(target.rule)
        if section is None or target.position >= len(section.to):
            return None
        return section.to[target.position]

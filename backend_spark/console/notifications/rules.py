"""Rules: their settings, who is notified of which event by them, and when."""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from functools import lru_cache
from typing import Final

from service_runtime.errors import FieldError
from service_runtime.settings import KeyRule, key
from slope_science import JST
from slope_science.levels import DANGER
from spatial_mqtt.cells import Cell

_CLOCK: Final = r"((?:[01]\d|2[0-3]):[0-5]\d)"
_HOURS: Final = re.compile(f"{_CLOCK}-{_CLOCK}")


@dataclass(frozen=True)
class QuietHours:
    """Hours of each day, in Japan.

    Attributes:
        begin: Their begin.
        end: Their end; before the begin if midnight is between.
    """

    begin: time
    end: time

    @classmethod
    def parse(cls, text: str) -> "QuietHours":
        """Parse such as ``22:00-06:00``.

        Raises:
            FieldError: It has another form.
        """
        match = _HOURS.fullmatch(text)
        if match is None or match[1] == match[2]:
            raise FieldError("quiet", "two times, such as 22:00-06:00", text)
        return cls(time.fromisoformat(match[1]), time.fromisoformat(match[2]))

    def end_s(self, at_s: float) -> float:
        """Unix time of their end if a moment is in them, else the moment."""
        at = datetime.fromtimestamp(at_s, JST)
        if not self._contains(at.time()):
            return at_s
        end = at.replace(hour=self.end.hour, minute=self.end.minute, second=0)
        end = end.replace(microsecond=0)
        return (end if end > at else end + timedelta(days=1)).timestamp()

    def _contains(self, clock: time) -> bool:
        if self.begin < self.end:
            return self.begin <= clock < self.end
        return clock >= self.begin or clock < self.end


def check_cells(tokens: tuple[str, ...]) -> None:
    """Refuse what is no token of a cell.

    Raises:
        FieldError: One is none.
    """
    for token in tokens:
        try:
            Cell.from_token(token)
        except ValueError as error:
            rule = "tokens of cells, such as 354e18bc, or of cells that contain them"
            raise FieldError("cells", rule, token, str(error)) from error


@dataclass(frozen=True)
class NotificationSection:
    """``[[console.notifications]]``: whom the console notifies of events, and when."""

    name: str = key(KeyRule("Name of the rule in the delivery log, unique."))
    to: tuple[str, ...] = key(
        KeyRule(
            "Addresses: https://… of a webhook, mailtos://user:password@host:587?from=…"
            "&to=… for e-mail, any other of Apprise (appriseit.com/services), or "
            "/path/of/a/file whose first line is one."
        )
    )
    format: str = key(
        KeyRule(
            "Body of webhooks; json is signed with key_file and has all data.",
            choices=("json", "lineworks", "slack", "teams"),
        ),
        "json",
    )
    key_file: str | None = key(
        KeyRule(
            "File whose first line is the key of the webhooks' signatures, at least 24 "
            "characters (Standard Webhooks, HMAC-SHA256); absent: not signed."
        ),
        None,
    )
    from_level: int = key(
        KeyRule("Lowest level of which is notified.", low=3, high=5), 3
    )
    districts: tuple[str, ...] = key(
        KeyRule("Districts of the places; empty with cells empty: everywhere."), ()
    )
    cells: tuple[str, ...] = key(
        KeyRule(
            "Tokens of cells, or of larger cells that contain them; empty with "
            "districts empty: everywhere.",
            check=check_cells,
        ),
        (),
    )
    unacknowledged_min: float = key(
        KeyRule(
            "Escalation: notify only when nobody has decided about the event after "
            "this time; 0: at once.",
            "min",
            0,
            1440,
        ),
        0.0,
    )
    quiet: str = key(
        KeyRule(
            "Hours in Japan in which level 3 waits for their end, such as 22:00-06:00; "
            "levels 4 and 5 never wait.",
            check=lambda hours: hours and QuietHours.parse(hours),
        ),
        "",
    )
    language: str = key(
        KeyRule("Language of the messages.", choices=("ja", "en")), "ja"
    )
    exercises: bool = key(
        KeyRule("Whether to notify in an exercise too; the title then says so."), False
    )

    def __post_init__(self) -> None:
        """Refuse a rule that notifies nobody."""
        if not self.to:
            raise FieldError("to", "at least one address", self.to)


DistrictsOf = Callable[[str], frozenset[str]]
"""Names of the districts in which a cell lies."""


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
    districts_of: DistrictsOf
    known_districts: Callable[[], frozenset[str]]

    def plan(self, cell: str | None, level: int, now_s: float) -> Iterator[Plan]:
        """Notifications about a rise of an event to a level.

        Args:
            cell: Of the event; None outside all cells.
            level: The level.
            now_s: Unix time.
        """
        for section in self.sections:
            if not self._applies(section, cell, level):
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

    def _applies(
        self, section: NotificationSection, cell: str | None, level: int
    ) -> bool:
        if level < section.from_level or (self.exercise and not section.exercises):
            return False
        if not section.cells and not section.districts:
            return True
        if cell is not None and self._is_inside(section, cell):
            return True
        return level >= DANGER and self._is_place_unknown(section, cell)

    def _is_place_unknown(self, section: NotificationSection, cell: str | None) -> bool:
        """Whether it is not known if an event is in the places of a rule.

        It is outside all cells, or no place has any of the rule's districts.
        """
        districts = set(section.districts)
        are_known = not districts or districts & self.known_districts()
        return cell is None or not are_known

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

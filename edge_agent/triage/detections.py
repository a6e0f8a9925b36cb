"""What a rule says of one sensor, before anybody has confirmed it.

What watches one sensor for one rule.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from edge_agent.triage.samples import Sample
from edge_agent.triage.snapshot import Json, number_of
from slope_science.criteria import Criteria
from slope_science.findings import LOWEST, Finding
from slope_science.reasons import Reason, ReasonCode


class Sign(Enum):
    """What a sensor shows of the slope.

    A sign confirms only another of its kind: that the soil is wet says nothing of
    whether the slope has moved.
    """

    MOVEMENT = "movement"
    WATER = "water"


@dataclass(frozen=True)
class Claim:
    """A rule that fired.

    Attributes:
        rule: Name of the rule.
        sensor: Whose readings fired it.
        level: When another sensor confirms it, or none has to.
        reason: The numbers, and what they were compared with; None for a claim of
            the lowest level.
        alone_level: While none does; None when none has to.
        at_s: When it happened; None for now.
        signs: What it shows, for others; a claim of the lowest level only shows.
        needs: Kind of the sign that confirms it.
        confirm_s: How close in time that sign must be; None is the setting's.
        number: Number of the ``[[triage.limit]]``; None for another rule.
    """

    rule: str
    sensor: str
    level: int
    reason: Reason | None
    alone_level: int | None = None
    at_s: float | None = None
    signs: tuple[Sign, ...] = ()
    needs: Sign = Sign.MOVEMENT
    confirm_s: float | None = None
    number: int | None = None

    @property
    def rule_id(self) -> str:
        """Key of the rule in the snapshot, such as ``rain`` or ``limit 2``."""
        return self.rule if self.number is None else f"{self.rule} {self.number}"


class Signs:
    """Which sensors have shown a sign, and when they last did.

    An event that was confirmed stays so, however the other sensor goes on.

    Args:
        confirm_s: How near in time two signs must be.
    """

    def __init__(self, confirm_s: float) -> None:
        self._confirm_s = confirm_s
        self._last: dict[tuple[str, Sign], float] = {}
        self._confirmed: dict[tuple[str, str, float], str] = {}

    def see(self, claims: Sequence[Claim], now_s: float) -> None:
        """Remember who shows what; forget events that are over."""
        events = set(map(_event, claims))
        self._confirmed = {
            event: other for event, other in self._confirmed.items() if event in events
        }
        for claim in claims:
            at_s = now_s if claim.at_s is None else claim.at_s
            for sign in claim.signs:
                key = claim.sensor, sign
                self._last[key] = max(at_s, self._last.get(key, at_s))

    def confirm(self, claim: Claim, now_s: float) -> str | None:
        """The other sensor whose sign is nearest; None without one near enough."""
        at_s = now_s if claim.at_s is None else claim.at_s
        near_s = self._confirm_s if claim.confirm_s is None else claim.confirm_s
        others = [
            (abs(other_s - at_s), sensor)
            for (sensor, sign), other_s in self._last.items()
            if sensor != claim.sensor and sign is claim.needs
        ]
        away_s, sensor = min(others, default=(near_s + 1, ""))
        return sensor if away_s <= near_s else None

    def out(self) -> Json:
        """For the snapshot."""
        return [[*event, other] for event, other in self._confirmed.items()]

    def restore(self, entries: Json) -> None:
        """Go on from a snapshot.

        Raises:
            TypeError, ValueError: It is something else.
        """
        self._confirmed = {
            (str(rule), str(sensor), number_of(at_s)): str(other)
            for rule, sensor, at_s, other in entries
        }

    def finding(self, claim: Claim, now_s: float) -> Finding | None:
        """What a claim comes to by now; None for nothing."""
        if claim.level <= LOWEST or claim.reason is None:
            return None
        reason = Reason(
            ReasonCode.RULE,
            rule=claim.rule,
            because=claim.reason,
            number=claim.number,
        )
        if claim.alone_level is None:
            return Finding(claim.level, reason)
        other = self._confirmed.get(_event(claim)) or self.confirm(claim, now_s)
        if other is not None:
            if claim.at_s is not None:
                self._confirmed[_event(claim)] = other
            confirmed = Reason(ReasonCode.CONFIRMED, because=reason, by=other)
            return Finding(claim.level, confirmed)
        if claim.alone_level <= LOWEST:
            return None
        unconfirmed = Reason(ReasonCode.UNCONFIRMED, because=reason)
        return Finding(claim.alone_level, unconfirmed)


def _event(claim: Claim) -> tuple[str, str, float]:
    return claim.rule_id, claim.sensor, claim.at_s or 0.0


def rung(
    value: float,
    rungs: Sequence[tuple[int, float]],
    was_level: int = LOWEST,
    clear_share: float = 1.0,
) -> tuple[int, float] | None:
    """The highest rung (level, threshold) that a value reaches, or has not left.

    Args:
        value: The value.
        rungs: The highest first.
        was_level: Level of the last judgement.
        clear_share: Up to that level a threshold is left only below this share.
    """
    for level, limit in rungs:
        share = clear_share if level <= was_level else 1.0
        if value >= limit * share:
            return level, limit
    return None


@dataclass(frozen=True)
class Scene:
    """What rules have to know beyond their own sensor.

    Attributes:
        now_s: Now, in triage's own time.
        criteria: Of the cell.
        r60_mm: Rain of the last 60 minutes, of the gauge that has most.
    """

    now_s: float
    criteria: Criteria
    r60_mm: float = 0.0


class Watch(Protocol):
    """A rule and its memory of one sensor."""

    @property
    def rule(self) -> str:
        """Name of the rule."""

    @property
    def sensor(self) -> str:
        """Name of the sensor."""

    def take(self, sample: Sample) -> None:
        """Remember what the sensor said."""

    def claims(self, scene: Scene) -> Iterable[Claim]:
        """What the rule says now."""

    def notes(self) -> Iterable[Reason]:
        """Why the rule cannot be used as it should, if so."""

    def out(self) -> Json:
        """What must survive a restart, as JSON knows it; None for nothing."""

    def restore(self, entry: Json) -> None:
        """Go on from what `out` gave.

        Raises:
            LookupError, TypeError, ValueError: It is something else.
        """


class Lasting:
    """Since when each level has been reached without a break.

    Args:
        persist_s: How long before it counts.
    """

    TOLERANCE_S = 30.0
    """Samplings ten minutes apart come some seconds early or late."""

    def __init__(self, persist_s: float) -> None:
        self._persist_s = persist_s
        self._since_s: dict[int, float] = {}

    def take(self, level: int, levels: Iterable[int], now_s: float) -> int:
        """The highest level that has lasted; 1 for none.

        Args:
            level: The level that is reached now.
            levels: All the rule knows.
            now_s: Now.
        """
        reached = [each for each in levels if each <= level]
        self._since_s = {each: self._since_s.get(each, now_s) for each in reached}
        enough_s = self._persist_s - self.TOLERANCE_S
        lasted = [
            each
            for each, since_s in self._since_s.items()
            if now_s - since_s >= enough_s
        ]
        return max(lasted, default=1)

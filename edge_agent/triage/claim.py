"""What a rule says of one sensor, before anybody has confirmed it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from edge_agent.triage.stored import Json, number_of
from slope_science.levels import LOWEST, Finding


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
        reason: The numbers, and what they were compared with.
        alone_level: While none does; None when none has to.
        at_s: When it happened; None for now.
        signs: What it shows, for others; a claim of the lowest level only shows.
        needs: Kind of the sign that confirms it.
        confirm_s: How close in time that sign must be; None is the setting's.
    """

    rule: str
    sensor: str
    level: int
    reason: str
    alone_level: int | None = None
    at_s: float | None = None
    signs: tuple[Sign, ...] = ()
    needs: Sign = Sign.MOVEMENT
    confirm_s: float | None = None


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
        reason = f"{claim.rule}: {claim.reason}"
        if claim.level <= LOWEST:
            return None
        if claim.alone_level is None:
            return Finding(claim.level, reason)
        other = self._confirmed.get(_event(claim)) or self.confirm(claim, now_s)
        if other is not None:
            if claim.at_s is not None:
                self._confirmed[_event(claim)] = other
            return Finding(claim.level, f"{reason}, confirmed by {other}")
        if claim.alone_level <= LOWEST:
            return None
        return Finding(claim.alone_level, f"{reason}, unconfirmed")


def _event(claim: Claim) -> tuple[str, str, float]:
    return claim.rule, claim.sensor, claim.at_s or 0.0


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

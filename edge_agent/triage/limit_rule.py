"""``[[triage.limit]]``: a user-defined limit for any sensor or quantity."""

import difflib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from edge_agent import quantities
from edge_agent.quantities import SensorDescription
from service_runtime.errors import FieldError
from service_runtime.settings import KeyRule, Problem, key
from slope_science.evidence.detections import Detection, EvidenceKind, RuleContext
from slope_science.evidence.samples import Json, SensorSample, optional_time
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason


@dataclass(frozen=True)
class LimitSettings:
    """``[[triage.limit]]``: a value above or below a threshold for some time."""

    sensor: str | None = key(
        KeyRule("The sensor, such as stage, or one of its readings: stage/temp."), None
    )
    quantity: str | None = key(
        KeyRule("Instead: every sensor of that quantity, such as water level."), None
    )
    above: float | None = key(
        KeyRule("It counts from this value up, in the unit of the readings."), None
    )
    below: float | None = key(KeyRule("Or from this value down."), None)
    clear_at: float | None = key(
        KeyRule("It is over on the other side of this value; absent is the same."), None
    )
    unit: str | None = key(
        KeyRule("Unit of the values, to be sure; must be that of the readings."), None
    )
    for_s: float = key(
        KeyRule(
            "How long it must last, from reading to reading, before it counts.",
            "s",
            low=0,
            high=604_800,
        ),
        0.0,
    )
    hold_s: float = key(
        KeyRule("How long it counts after it is over.", "s", low=0, high=604_800), 600.0
    )
    level: int = key(KeyRule("Its level.", low=2, high=5))
    alone_level: int | None = key(
        KeyRule(
            "Level while no second sensor confirms it; absent needs none.",
            low=1,
            high=5,
        ),
        None,
    )
    confirm_s: float = key(
        KeyRule(
            "Maximum time to the evidence of the second sensor.", "s", low=1, high=3600
        ),
        120.0,
    )

    def __post_init__(self) -> None:
        """Reject a limit without target, with two sides, or a wrong `clear_at`."""
        for one, other in (("sensor", "quantity"), ("above", "below")):
            given = [name for name in (one, other) if getattr(self, name) is not None]
            if len(given) != 1:
                rule = "given, and not both"
                raise FieldError(f"{one} or {other}", rule, given or "neither")
        if self.clear_at is not None and self.is_exceeded_by(self.clear_at):
            side = "below" if self.above is not None else "above"
            raise FieldError("clear_at", f"{side} {self.threshold:g}", self.clear_at)
        if self.alone_level is not None and self.alone_level > self.level:
            raise FieldError("alone_level", f"at most {self.level}", self.alone_level)

    @property
    def threshold(self) -> float:
        """The given threshold, `above` or `below`."""
        value = self.above if self.above is not None else self.below
        assert value is not None  # noqa: S101 - one of them is given
        return value

    def is_exceeded_by(self, value: float, *, was_exceeded: bool = False) -> bool:
        """Whether a value is beyond the limit, or has not cleared it yet."""
        edge = self.threshold
        if was_exceeded and self.clear_at is not None:
            edge = self.clear_at
        return value >= edge if self.above is not None else value <= edge

    def applies_to(self, reading: str, quantity: str | None) -> bool:
        """Whether the limit applies to a reading.

        Args:
            reading: Name of the reading.
            quantity: Quantity of its sensor; None if unknown.
        """
        if self.sensor is not None:
            return reading == self.sensor
        wanted = quantities.canonical_quantity(self.quantity or "")
        return "/" not in reading and quantity == wanted

    def find_problems(self, sensors: Sequence[SensorDescription]) -> list[Problem]:
        """Reasons why the limit does not fit a node with these sensors."""
        if self.sensor is not None:
            known = [sensor.name for sensor in sensors]
            wanted = self.sensor.partition("/")[0]
            named = [s for s in sensors if s.name == wanted]
            if not named:
                return [_unknown("sensor", "sensor", self.sensor, known)]
        else:
            known = sorted({quantities.canonical_quantity(s.quantity) for s in sensors})
            wanted = quantities.canonical_quantity(self.quantity or "")
            named = [
                s
                for s in sensors
                if quantities.canonical_quantity(s.quantity) == wanted
            ]
            if not named:
                return [_unknown("quantity", "quantity", self.quantity or "", known)]
        return self._wrong_units(named)

    def _wrong_units(self, sensors: Sequence[SensorDescription]) -> list[Problem]:
        if self.unit is None or "/" in (self.sensor or ""):
            return []
        return [
            Problem("unit", f"must be {s.senml_unit!r}, as {s.name} reads", self.unit)
            for s in sensors
            if s.senml_unit != self.unit
        ]


def _unknown(field: str, what: str, value: str, known: Sequence[str]) -> Problem:
    near = difflib.get_close_matches(value, known, n=1, cutoff=0.5)
    remedy = f"did you mean {near[0]!r}?" if near else None
    rule = f"must be a {what} of this node: {', '.join(known)}"
    return Problem(field, rule, value, remedy)


def find_limit_problems(
    limits: Sequence[LimitSettings], sensors: Sequence[SensorDescription]
) -> list[Problem]:
    """One problem for each limit that does not fit these sensors."""
    return [
        problem.under(f"triage.limit[{at}]")
        for at, limit in enumerate(limits, 1)
        for problem in limit.find_problems(sensors)
    ]


LIMIT_RULE = "limit"


def limit_id(number: int) -> str:
    """Id of the rule of the limit with a number in the settings."""
    return f"{LIMIT_RULE} {number}"


def conditions(limits: Iterable[LimitSettings]) -> list[list[Json]]:
    """What the state of each limit depends on, for the snapshot; then its level."""
    return [
        [each.sensor, each.quantity, each.above, each.below, each.clear_at, each.level]
        for each in limits
    ]


def find_present_ids(
    stored: Sequence[Sequence[Json]], limits: Sequence[LimitSettings]
) -> dict[str, str]:
    """Present id by the stored one, for each stored limit that the settings still have.

    Args:
        stored: `conditions` of the snapshot.
        limits: Limits of the settings.
    """
    found: dict[str, str] = {}
    present = conditions(limits)
    for number, condition in enumerate(stored, 1):
        same = [n for n, now in enumerate(present, 1) if now[:-1] == condition[:-1]]
        # each once: two limits may differ in other keys only, such as `for_s`
        same = [n for n in same if limit_id(n) not in found.values()] or same
        if same:  # of several with one condition the one of the same level, then place
            found[limit_id(number)] = limit_id(
                min(same, key=lambda n: (present[n - 1] != condition, n != number))
            )
    return found


MAX_READING_GAP_S = 6 * 3600.0
"""Time without a reading after which a limit is over. The longest interval of a sensor
is an hour, and five while the battery is saved."""


class LimitRule:
    """Rule for one limit on one sensor.

    Attributes:
        rule: Name of the rule.
        sensor: Name of the sensor.
    """

    def __init__(self, sensor: str, limit: LimitSettings, number: int) -> None:
        self.sensor = sensor
        self.rule = limit_id(number)
        self._number = number
        self._limit = limit
        self._part = (limit.sensor or "").partition("/")[2]
        self._value: float | None = None
        self._good: float | None = None
        self._since_s: float | None = None
        self._last_s = -math.inf
        self._may_be_of_other = False
        self._is_doubtful = False
        self._began_doubtful = False

    def on_sample(self, sample: SensorSample) -> None:
        """Store the time since which the value is beyond the limit."""
        value = sample.parts.get(self._part) if self._part else sample.raw
        if value is None:
            return
        was = self._since_s is not None
        is_doubtful = sample.is_value_doubtful(value, self._good)
        is_own = was and not self._may_be_of_other
        self._may_be_of_other = False
        if not self._limit.is_exceeded_by(value, was_exceeded=is_own):
            self._since_s = None
        elif not was or (self._began_doubtful and not is_doubtful):
            # a doubtful excess starts to count with the first good reading
            self._since_s, self._began_doubtful = sample.at_s, is_doubtful
        self._value, self._is_doubtful = value, is_doubtful
        if not is_doubtful:
            self._good = value
        self._last_s = max(self._last_s, sample.at_s)

    def detect(self, context: RuleContext) -> Iterable[Detection]:
        """That the value has been beyond the limit for long enough, as measured."""
        limit, since_s = self._limit, self._since_s
        if since_s is None or self._value is None:
            return
        lasted_s = self._last_s - since_s
        silent_s = context.now_s - self._last_s
        if lasted_s < limit.for_s or silent_s > max(limit.hold_s, MAX_READING_GAP_S):
            return
        reason = Reason(
            ReasonCode.LIMIT,
            sensor=limit.sensor or self.sensor,
            value=self._value,
            side="above" if limit.above is not None else "below",
            limit=limit.threshold,
            lasted_s=lasted_s,
        )
        yield Detection(
            LIMIT_RULE,
            self.sensor,
            limit.level,
            reason,
            unconfirmed_level=1 if self._is_doubtful else limit.alone_level,
            evidence=()
            if self._is_doubtful
            else (EvidenceKind.MOVEMENT, EvidenceKind.WATER),
            confirm_s=limit.confirm_s,
            number=self._number,
        )

    def diagnostics(self) -> Iterable[Reason]:
        """None."""
        return ()

    def to_snapshot(self) -> Json:
        """State for the snapshot; a doubtful excess begins anew after it."""
        return None if self._began_doubtful else self._since_s

    def restore(self, entry: Json) -> None:
        """Restore from `to_snapshot`."""
        self._since_s = optional_time(entry)

    def doubt_restored(self) -> None:
        """Keep a restored state only if the next value is beyond the threshold.

        Snapshots of earlier programs have the position of a limit in the settings only,
        where another limit may be now. That the value is beyond the threshold is then
        true of this one, that it has not reached `clear_at` may be not. `for_s` does
        not begin anew, because most upgrades change no limit.
        """
        self._may_be_of_other = True

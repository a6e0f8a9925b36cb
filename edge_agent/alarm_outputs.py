"""Alarm outputs: lamps and sounders that follow the level without any network.

The level is the highest of the node's own rules and of the notices for its position,
so a lamp at the road works while the backend, the gateway or the link is down. When a
notice of level 3 or more expires without withdrawal, the level is unknown: an output
that is not on then flashes briefly and repeatedly, because off would mean no danger.
One that was on for its longest time flashes likewise while the level lasts, and one
whose node can read none of its sensors, unless a backend judges the area.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpiozero import DigitalOutputDevice

from edge_agent.sensors.base import SensorConfig, check_sensor_name, pin_error_types
from edge_agent.sensors.registry import find_user
from service_runtime.errors import FieldError
from service_runtime.settings import KeyRule, Problem, key
from slope_science.levels import LOWEST

log = logging.getLogger(__name__)


ON, OFF, LIMITED, UNKNOWN, DRILL = "on", "off", "limited", "unknown", "drill"
"""States of an output; it flashes when limited by `most_s`, when unknown, and in a
drill, which any of the others but `OFF` replaces."""

FAILED = "failed"
"""Reported of an output that cannot be switched."""

DRILL_PERIOD_S = 10.0
DRILL_FLASHES = (0, 2, 4)
"""Seconds of a period in which an output is on in a drill: three short signals."""

FLASH_S = 1.0
"""Time on of one flash: one interval between two updates."""

MIN_FLASH_INTERVAL_S = 2.0

RETURN_S = 600.0
"""A level that was not reached for this time is a higher level when it returns; sooner
it is the same one that fluctuates."""


def check_flash_interval(every_s: float) -> None:
    """Check the time between two flashes.

    Raises:
        FieldError: It is too short.
    """
    if 0 < every_s < MIN_FLASH_INTERVAL_S:
        rule = f"0, or {MIN_FLASH_INTERVAL_S:g} or more"
        remedy = "take 5 for a lamp, 60 for a sounder"
        raise FieldError("unknown_every_s", rule, every_s, remedy)


@dataclass(frozen=True)
class AlarmOutputSettings:
    """``[[alarm]]``: a lamp or a sounder on a pin."""

    name: str = key(
        KeyRule("Name of the output, such as siren.", check=check_sensor_name)
    )
    pin: int = key(
        KeyRule(
            "BCM number of the pin, which switches a relay or a transistor.",
            low=0,
            high=27,
        )
    )
    from_level: int = key(
        KeyRule("Lowest level at which it is on; 2 to 5.", low=2, high=5), 4
    )
    by_notice: bool = key(
        KeyRule("Whether notices count, or only the node's own level."), True
    )
    active_high: bool = key(KeyRule("Whether the pin is high while it is on."), True)
    blink_s: float = key(
        KeyRule(
            "Time on and time off while blinking; 0 is steady.", "s", low=0, high=10
        ),
        0.0,
    )
    most_s: float = key(
        KeyRule(
            "Longest time on in a row; then it flashes while the level lasts. A higher "
            "level restarts it, also one that returns after ten minutes; 0 has no "
            "limit, as for a lamp.",
            "s",
            low=0,
            high=86_400,
        ),
        3600.0,
    )
    unknown_every_s: float = key(
        KeyRule(
            "Time between two flashes of 1 s while the level is unknown, and after "
            "`most_s`; longer for a sounder, such as 60; 0: off meanwhile.",
            "s",
            low=0,
            high=3600,
            check=check_flash_interval,
        ),
        5.0,
    )


class AlarmOutput:
    """One alarm output.

    Args:
        settings: Its settings.
        pin_factory: gpiozero's access to the pins.

    Raises:
        What the pin library raises; see `pin_error_types`.
    """

    def __init__(self, settings: AlarmOutputSettings, pin_factory: Any) -> None:  # noqa: ANN401 - gpiozero has no types
        self.settings = settings
        self._device = DigitalOutputDevice(
            settings.pin, active_high=settings.active_high, pin_factory=pin_factory
        )
        self._since: tuple[int, float] | None = None
        self._lower_since: tuple[int, float] | None = None
        self.state = OFF

    def update(
        self,
        own_level: int,
        notice_level: int,
        now_s: float,
        *,
        is_unknown: bool = False,
        is_blind: bool = False,
        drill_level: int = LOWEST,
    ) -> None:
        """Switch the output by level and time.

        Args:
            own_level: The node's own level.
            notice_level: The level of the notices.
            now_s: Monotonic time.
            is_unknown: Whether the level is unknown: a notice expired without
                withdrawal, or the node is blind and no backend judges the area.
            is_blind: Whether the node can read none of its sensors, so that its own
                level is unknown.
            drill_level: The level of a drill; 1 without one.
        """
        s = self.settings
        level = max(own_level, notice_level) if s.by_notice else own_level
        self._store_level(level, now_s)
        state = self._state(now_s)
        if state == OFF:
            is_drill = s.by_notice and drill_level >= s.from_level
            is_unknown = is_unknown if s.by_notice else is_blind
            state = self._weaker_state(is_unknown, is_drill=is_drill)
        self._switch(state, level)
        if state in {LIMITED, UNKNOWN}:
            self._flash(now_s)
        elif state == DRILL:
            self._device.value = int(now_s % DRILL_PERIOD_S) in DRILL_FLASHES

    def close(self) -> None:
        """Switch the output off and release its pin."""
        self._device.close()

    def _store_level(self, level: int, now_s: float) -> None:
        """Store since when it is on, and the level that a higher one must exceed."""
        if level < self.settings.from_level:
            self._since = self._lower_since = None
        elif self._since is None or level > self._since[0]:
            self._since, self._lower_since = (level, now_s), None
        elif level == self._since[0]:
            self._lower_since = None
        elif self._lower_since is None:
            self._lower_since = level, now_s
        else:
            highest, lower_s = max(level, self._lower_since[0]), self._lower_since[1]
            self._lower_since = highest, lower_s
            if now_s - lower_s >= RETURN_S:
                self._since = highest, self._since[1]
                self._lower_since = (level, now_s) if level < highest else None

    def _state(self, now_s: float) -> str:
        """State by the level."""
        if self._since is None:
            return OFF
        if not 0 < self.settings.most_s <= now_s - self._since[1]:
            return ON
        return LIMITED if self.settings.unknown_every_s else OFF

    def _weaker_state(self, is_unknown: bool, *, is_drill: bool) -> str:
        """State where the level switches nothing on."""
        if is_unknown and self.settings.unknown_every_s:
            return UNKNOWN
        return DRILL if is_drill and self._since is None else OFF

    def _switch(self, state: str, level: int) -> None:
        if state == self.state:
            return
        self.state = state
        log.warning("alarm %s is %s: level %d", self.settings.name, state, level)
        if state == ON and self.settings.blink_s:
            self._device.blink(self.settings.blink_s, self.settings.blink_s)
        elif state == ON:
            self._device.on()
        else:
            self._device.off()

    def _flash(self, now_s: float) -> None:
        every_s = self.settings.unknown_every_s
        self._device.value = now_s % every_s >= every_s - FLASH_S


class AlarmOutputs:
    """All alarm outputs of a node; one that fails to open does not affect the others.

    Args:
        settings: Settings of each output.
        pin_factory: gpiozero's access to the pins.
        clock: Monotonic time.
    """

    def __init__(
        self,
        settings: Sequence[AlarmOutputSettings],
        pin_factory: Any,  # noqa: ANN401 - gpiozero has no types
        clock: Callable[[], float],
    ) -> None:
        self._clock = clock
        self._failed: dict[str, str] = {}
        self._alarms: list[AlarmOutput] = []
        for each in settings:
            try:
                self._alarms.append(AlarmOutput(each, pin_factory))
            except pin_error_types() as error:
                log.error("alarm %s cannot be switched: %s", each.name, error)  # noqa: TRY400
                self._failed[each.name] = str(error)

    def update(
        self,
        own_level: int,
        notice_level: int,
        *,
        is_unknown: bool = False,
        is_blind: bool = False,
        drill_level: int = LOWEST,
    ) -> None:
        """Switch all outputs by the current levels; see `AlarmOutput.update`."""
        for alarm in self._alarms:
            alarm.update(
                own_level,
                notice_level,
                self._clock(),
                is_unknown=is_unknown,
                is_blind=is_blind,
                drill_level=drill_level,
            )

    def states(self) -> Mapping[str, str]:
        """State of each output by name, or why it cannot be switched."""
        states = {a.settings.name: a.state for a in self._alarms}
        return {**states, **self._failed}

    def summary(self) -> str | None:
        """State of each output, such as ``siren:on lamp:off``; None without outputs."""
        states = {a.settings.name: a.state for a in self._alarms}
        states |= dict.fromkeys(self._failed, FAILED)
        return " ".join(f"{name}:{state}" for name, state in states.items()) or None

    def close(self) -> None:
        """Switch all outputs off and release their pins."""
        for alarm in self._alarms:
            alarm.close()


def find_alarm_problems(
    alarms: Sequence[AlarmOutputSettings], sensors: Sequence[SensorConfig]
) -> Iterable[Problem]:
    """A problem for each output whose pin or name is in use already."""
    for at, alarm in enumerate(alarms, 1):
        others = alarms[: at - 1]
        user = find_user(f"GPIO{alarm.pin}", sensors)
        taken = [f"alarm.{o.name}" for o in others if o.pin == alarm.pin]
        taken += [] if user is None else [f"sensor.{user}"]
        if taken:
            remedy = f"{taken[0]} uses it; choose another pin"
            rule = "must be a pin of its own"
            yield Problem(f"alarm[{at}].pin", rule, alarm.pin, remedy)
        if alarm.name in {o.name for o in others}:
            yield Problem(f"alarm[{at}].name", "must be named once", alarm.name)

"""What one sensor of a node says, with everything an installer compares it with.

Looks as lines of text that fit a small screen and a photograph.

What came of a check, for a program and, boxed, for a photograph.
"""

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edge_agent.commissioning.link_check import LinkReport
from edge_agent.sensor_reader import Reader, health_name
from edge_agent.sensors.base import Claiming, Sensor
from edge_agent.sensors.errors import Health, SensorError
from slope_science.quality import LABEL, Flag
from spatial_mqtt.senml import Reading, Value

_DOUBTS = {Flag.SUSPECT: Health.DOUBTFUL, Flag.FAIL: Health.IMPLAUSIBLE}


@dataclass(frozen=True)
class Shown:
    """One reading.

    Attributes:
        name: Such as ``rain`` or ``tilt/x``.
        value: What it is; None when only a sum is given.
        unit: SenML unit; None for truth and text.
        sum: Since the counter began.
        flag: What quality control says of it.
    """

    name: str
    value: Value
    unit: str | None
    sum: float | None
    flag: Flag

    def __str__(self) -> str:
        """Name, value and unit."""
        value, unit = self.value, f" {self.unit}" if self.unit else ""
        if isinstance(value, bool):
            shown = "yes" if value else "no"
        elif isinstance(value, float | int):
            shown = f"{value:.5g}"
        else:
            shown = repr(value)
        since = "" if self.sum is None else f" (sum {self.sum:g}{unit})"
        return f"{self.name} {shown}{unit}{since}"


@dataclass(frozen=True)
class Look:
    """What one sensor said.

    Attributes:
        name: Of the sensor.
        kind: Of its driver.
        quantity: What it measures.
        unit: SenML unit; None for a truth value.
        low: Least value that can be; None for none.
        high: Greatest value that can be; None for none.
        largest_step: Largest plausible change between two readings; None for any.
        wiring: Pins and chips it needs.
        health: How it is, in a word.
        problem: What is wrong, with a remedy; None when nothing is.
        shown: Its readings.
    """

    name: str
    kind: str
    quantity: str
    unit: str | None
    low: float | None
    high: float | None
    largest_step: float | None
    wiring: tuple[str, ...]
    health: Health
    problem: str | None
    shown: tuple[Shown, ...]

    @property
    def is_well(self) -> bool:
        """Whether it may be left alone on the slope."""
        return self.health is Health.OK

    @property
    def flag(self) -> Flag:
        """The worst flag of its readings; MISSING without any."""
        return max((each.flag for each in self.shown), default=Flag.MISSING)

    def told(self) -> dict[str, Any]:
        """The same for a program, in JSON's types."""
        return {
            **{k: v for k, v in vars(self).items() if k not in {"shown", "wiring"}},
            "health": self.health.value,
            "wiring": list(self.wiring),
            "readings": [
                {**vars(each), "flag": each.flag.name.lower()} for each in self.shown
            ],
        }


def look_at(settings: Claiming, sensor: Sensor, reader: Reader, now_s: float) -> Look:
    """Read a sensor once.

    Args:
        settings: Of the sensor.
        sensor: What is read.
        reader: Reads it.
        now_s: Unix time, for parts that need one.
    """
    return look_of(settings, reader.read([sensor], now_s), reader)


def look_of(settings: Claiming, readings: Sequence[Reading], reader: Reader) -> Look:
    """What some readings tell of one sensor."""
    return _look(
        settings,
        [r for r in readings if _is_of(r, settings.name)],
        reader.errors.get(settings.name),
    )


def _is_of(reading: Reading, name: str) -> bool:
    return reading.name == name or reading.name.startswith(f"{name}/")


def _look(
    settings: Claiming, readings: Sequence[Reading], error: SensorError | None
) -> Look:
    own = health_name(settings.name)
    told = [r.value for r in readings if r.name == own]
    shown = tuple(_shown(r) for r in readings if r.name != own)
    health, problem = _judged(settings, shown, error, told)
    low, high = settings.range
    return Look(
        settings.name,
        settings.kind,
        settings.quantity,
        settings.senml_unit,
        low if math.isfinite(low) else None,
        high if math.isfinite(high) else None,
        settings.largest_step,
        tuple(settings.claims),
        health,
        problem,
        shown,
    )


def _judged(
    settings: Claiming,
    shown: Sequence[Shown],
    error: SensorError | None,
    told: Sequence[Value],
) -> tuple[Health, str | None]:
    if error is not None:
        return error.health, str(error)
    last = told[-1] if told else None
    if isinstance(last, str) and last.startswith(Health.FLAPS):
        return Health.FLAPS, f"sensor {settings.name} {last}; check its contact"
    worst = max(shown, key=lambda each: each.flag, default=None)
    if worst is not None and worst.flag in _DOUBTS:
        low, high = settings.range
        step = settings.largest_step
        within = f"{low:g} to {high:g} {settings.senml_unit or ''}".strip()
        steps = "" if step is None else f", in steps of at most {step:g}"
        problem = f"must be {within}{steps}, got {worst}; see whether it can be true"
        return _DOUBTS[worst.flag], f"sensor {settings.name} {problem}"
    return Health.OK, None


def _shown(reading: Reading) -> Shown:
    flag = Flag(int(reading.extra.get(LABEL, Flag.GOOD)))
    return Shown(reading.name, reading.value, reading.unit, reading.sum, flag)


WIDTH = 96
_HEADS = ("sensor", "reads", "can be", "step", "QC", "wiring", "health")


def table(looks: Sequence[Look]) -> list[str]:
    """One row for each reading, and what is wrong with a sensor below it."""
    rows = {look.name: _rows(look) for look in looks}
    lines = list(grid([_HEADS, *(row for each in rows.values() for row in each)]))
    told = [lines.pop(0)]
    for look in looks:
        told += [lines.pop(0) for _ in rows[look.name]]
        told += problem(look)
    return told


def problem(look: Look) -> list[str]:
    """What is wrong with a sensor, and what to do; nothing for a well one."""
    if look.problem is None:
        return []
    return textwrap.wrap(
        f"!! {look.problem}", WIDTH, initial_indent="   ", subsequent_indent="      "
    )


def grid(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows whose columns stand below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def _rows(look: Look) -> list[tuple[str, ...]]:
    step = "any" if look.largest_step is None else f"{look.largest_step:g}"
    first = look.shown[0] if look.shown else None
    rows: list[tuple[str, ...]] = [
        (
            look.name,
            str(first) if first else "-",
            _range(look),
            step,
            look.flag.name.lower(),
            ", ".join(look.wiring),
            look.health.value,
        )
    ]
    more = look.shown[1:]
    return rows + [("", str(m), "", "", m.flag.name.lower(), "", "") for m in more]


def _range(look: Look) -> str:
    if look.unit is None:
        return "yes, no"
    low, high = ("" if x is None else f"{x:g}" for x in (look.low, look.high))
    return f"{low}..{high} {look.unit}"


BOX_WIDTH = 76


@dataclass(frozen=True)
class Machine:
    """Which node it is, where and on what.

    Attributes:
        node: Its id.
        latitude: In degrees.
        longitude: In degrees.
        cell: Topic of its S2 cell.
        time: ISO, and whether a time server has set the clock.
        is_synchronised: Whether one has.
        versions: Of our program and of what it runs on, by name.
    """

    node: str
    latitude: float
    longitude: float
    cell: str
    time: str
    is_synchronised: bool
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Report:
    """Everything that a check found.

    Attributes:
        machine: The node.
        looks: At its sensors; None when they were left alone.
        link: Of the link test; None without one.
        moves: How often each sensor did something in a live check; empty without.
        problems: What is wrong beside sensors and link.
    """

    machine: Machine
    looks: Sequence[Look] | None
    link: LinkReport | None = None
    moves: Mapping[str, int] = field(default_factory=dict)
    problems: Sequence[str] = ()

    @property
    def is_passed(self) -> bool:
        """Whether the installer may leave."""
        are_well = all(look.is_well for look in self.looks or ())
        is_linked = self.link is None or self.link.is_passed
        return are_well and is_linked and not self.problems

    def told(self) -> dict[str, Any]:
        """The same for a program, in JSON's types."""
        looks = None if self.looks is None else [look.told() for look in self.looks]
        return {
            "verdict": "pass" if self.is_passed else "fail",
            **vars(self.machine),
            "sensors": looks,
            "moves": dict(self.moves),
            "link": self.link and self.link.told(),
            "problems": list(self.problems),
        }

    def box(self) -> list[str]:
        """The summary, for a photograph."""
        rule = "+" + "-" * BOX_WIDTH + "+"
        return [rule, *(f"| {row:<{BOX_WIDTH - 2}} |" for row in self._rows()), rule]

    def _rows(self) -> Iterator[str]:
        verdict = "PASS" if self.is_passed else "FAIL"
        machine = self.machine
        yield f"{verdict}  {machine.node}".ljust(
            BOX_WIDTH - 22
        ) + "yamamori check".rjust(20)
        clock = "" if machine.is_synchronised else "  (clock is not set)"
        yield f"time      {machine.time}{clock}"
        yield f"position  {machine.latitude:.6f} {machine.longitude:.6f}"
        yield from _wrapped(f"cell      {machine.cell}")
        words = ", ".join(
            f"{name} {version}" for name, version in machine.versions.items()
        )
        yield from _wrapped(f"versions  {words}")
        yield from self._sensors()
        if self.link is None:
            yield "link      not tested; use --link"
        else:
            for line in self.link.lines():
                yield from _wrapped(line)
        for problem in self.problems:
            yield from _wrapped(f"!! {problem}")

    def _sensors(self) -> Iterator[str]:
        if self.looks is None:
            yield "sensors   not looked at"
            return
        good = sum(look.is_well for look in self.looks)
        yield f"sensors   {good} of {len(self.looks)} well"
        for look in self.looks:
            moves = self.moves.get(look.name, 0)
            moved = f", moved {moves}x" if moves else ""
            read = str(look.shown[0]) if look.shown else "no reading"
            mark = "ok  " if look.is_well else "FAIL"
            health = "" if look.is_well else f" ({look.health})"
            line = f"  {mark} {look.name}{health}: {read}{moved}"
            yield from _wrapped(f"{line} [{', '.join(look.wiring)}]")


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(line, BOX_WIDTH - 2, subsequent_indent=" " * 10)

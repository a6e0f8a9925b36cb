"""Sensor check: readings of each sensor with its limits, as table, box and JSON.

Tables fit a small screen; the box at the end fits a photograph.
"""

import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edge_agent import quantities
from edge_agent.cli.link_check import LinkReport
from edge_agent.sensor_reader import SensorReader, health_name
from edge_agent.sensors.base import Health, Sensor, SensorConfig, SensorError
from slope_science.evidence.samples import TILT_AXES
from slope_science.quality import FLAG_LABEL, Flag
from spatial_mqtt.senml import Reading, Value

_DOUBTS = {Flag.SUSPECT: Health.DOUBTFUL, Flag.FAIL: Health.IMPLAUSIBLE}


@dataclass(frozen=True)
class ReadingView:
    """One reading.

    Attributes:
        name: Name, such as ``rain`` or ``tilt/x``.
        value: Value; None when only a sum is given.
        unit: SenML unit; None for truth values and text.
        sum: Sum since the counter began.
        flag: Quality flag.
    """

    name: str
    value: Value
    unit: str | None
    sum: float | None
    flag: Flag

    def __str__(self) -> str:
        """Format name, value, unit and sum."""
        value, unit = self.value, f" {self.unit}" if self.unit else ""
        if isinstance(value, bool):
            shown = "yes" if value else "no"
        elif isinstance(value, float | int):
            shown = f"{value:.5g}"
        else:
            shown = "" if value is None else repr(value)
        total = "" if self.sum is None else f" (sum {self.sum:g}{unit})"
        return self.name + (f" {shown}{unit}" if shown else "") + total


@dataclass(frozen=True)
class SensorCheck:
    """Result of a check of one sensor.

    Attributes:
        name: Name of the sensor.
        kind: Kind of its driver.
        quantity: Measured quantity.
        unit: SenML unit; None for a truth value.
        low: Least possible value; None for no limit.
        high: Greatest possible value; None for no limit.
        largest_step: Largest plausible change between two readings; None for any.
        wiring: Pins and chips that it uses.
        health: Health of the sensor.
        problem: The problem, with a remedy; None when there is none.
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
    shown: tuple[ReadingView, ...]

    @property
    def is_ok(self) -> bool:
        """Whether the sensor works."""
        return self.health is Health.OK

    @property
    def flag(self) -> Flag:
        """The worst flag of its readings; MISSING without any."""
        return max((each.flag for each in self.shown), default=Flag.MISSING)

    def to_dict(self) -> dict[str, Any]:
        """As a dict of JSON's types."""
        return {
            **{k: v for k, v in vars(self).items() if k not in {"shown", "wiring"}},
            "health": self.health.value,
            "wiring": list(self.wiring),
            "readings": [
                {**vars(each), "flag": each.flag.name.lower()} for each in self.shown
            ],
        }


def check_sensor(
    settings: SensorConfig, sensor: Sensor, reader: SensorReader, now_s: float
) -> SensorCheck:
    """Read a sensor once.

    Args:
        settings: Settings of the sensor.
        sensor: The open sensor.
        reader: Reads it.
        now_s: Unix time, for sensors that need it.
    """
    return make_sensor_check(settings, reader.read([sensor], now_s), reader)


CONTACT_KINDS = frozenset({"rain-gauge", "vibration"})
CONTACT_PAUSE_S = 0.5
"""A contact that is closed in two readings so far apart, without a pulse between them,
stays closed; a tip of a bucket is shorter."""


def check_sensors(
    settings: Sequence[SensorConfig],
    sensors: Sequence[Sensor],
    reader: SensorReader,
    now_s: float,
    sleep: Callable[[float], object],
) -> list[SensorCheck]:
    """Read sensors once, concurrently, and those with a contact once more.

    Args:
        settings: Settings of each sensor.
        sensors: The open sensors.
        reader: Reads them.
        now_s: Unix time, for sensors that need it.
        sleep: Waits between the two readings of a contact.
    """
    readings = reader.read(sensors, now_s)
    names = {each.name for each in settings if each.kind in CONTACT_KINDS}
    contacts = [each for each in sensors if each.name in names]
    if contacts:
        sleep(CONTACT_PAUSE_S)
        healths = set(map(health_name, names))
        again = reader.read(contacts, now_s)
        readings += [r for r in again if r.name in healths and r.value != Health.OK]
    return [make_sensor_check(each, readings, reader) for each in settings]


def make_sensor_check(
    settings: SensorConfig, readings: Sequence[Reading], reader: SensorReader
) -> SensorCheck:
    """The result of a check of one sensor, from readings of several."""
    name = settings.name
    own = [r for r in readings if r.name == name or r.name.startswith(f"{name}/")]
    healths = [r.value for r in own if r.name == health_name(name)]
    shown = tuple(_shown(r) for r in own if r.name != health_name(name))
    health, problem = _health(settings, shown, reader.errors.get(name), healths)
    low, high = settings.range
    return SensorCheck(
        name,
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


def _health(
    settings: SensorConfig,
    shown: Sequence[ReadingView],
    error: SensorError | None,
    healths: Sequence[Value],
) -> tuple[Health, str | None]:
    if error is not None:
        return error.health, str(error)
    last = healths[-1] if healths else None
    if isinstance(last, str) and last.startswith(Health.FLAPS):
        return Health.FLAPS, f"sensor {settings.name} {last}; check its contact"
    is_wire = quantities.judged_quantity(settings.quantity) == quantities.WIRE
    if is_wire and any(each.value is True for each in shown):
        problem = "reads cut; see whether the wire is whole and connected"
        return Health.DISCONNECTED, f"sensor {settings.name} {problem}"
    worst = max(shown, key=lambda each: each.flag, default=None)
    if worst is not None and worst.flag in _DOUBTS:
        low, high = settings.range
        step = settings.largest_step
        within = f"{low:g} to {high:g} {settings.senml_unit or ''}".strip()
        steps = "" if step is None else f", in steps of at most {step:g}"
        problem = f"must be {within}{steps}, got {worst}; see whether it can be true"
        return _DOUBTS[worst.flag], f"sensor {settings.name} {problem}"
    return Health.OK, None


LEVEL_DEG = 8.0
"""Angle from which `find_mounting_notes` reports an SCL3300: a degree before it begins
to measure in its wide range."""


def find_mounting_notes(checks: Iterable[SensorCheck]) -> list[str]:
    """One sentence for each inclinometer that is not near level."""
    notes = []
    for check in checks:
        names = {f"{check.name}/{axis}" for axis in TILT_AXES}
        angles = [each.value for each in check.shown if each.name in names]
        most_deg = max((abs(a) for a in angles if isinstance(a, float)), default=0.0)
        if check.kind == "scl3300" and most_deg > LEVEL_DEG:
            notes.append(
                f"sensor {check.name} is mounted {most_deg:.1f} deg from level; within "
                f"{LEVEL_DEG:g} deg an SCL3300 has its full resolution"
            )
    return notes


def _shown(reading: Reading) -> ReadingView:
    flag = Flag(int(reading.extra.get(FLAG_LABEL, Flag.GOOD)))
    return ReadingView(reading.name, reading.value, reading.unit, reading.sum, flag)


WIDTH = 96
_HEADS = ("sensor", "reads", "can be", "step", "QC", "wiring", "health")


def format_table(checks: Sequence[SensorCheck]) -> list[str]:
    """Format a row for each reading, and the problem of a sensor below it."""
    rows = {check.name: _rows(check) for check in checks}
    lines = list(
        align_columns([_HEADS, *(row for each in rows.values() for row in each)])
    )
    output = [lines.pop(0)]
    for check in checks:
        output += [lines.pop(0) for _ in rows[check.name]]
        output += format_problem(check)
    return output


def format_problem(check: SensorCheck) -> list[str]:
    """Format the problem of a sensor with its remedy; empty without a problem."""
    if check.problem is None:
        return []
    return textwrap.wrap(
        f"!! {check.problem}", WIDTH, initial_indent="   ", subsequent_indent="      "
    )


def align_columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Format rows with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def _rows(check: SensorCheck) -> list[tuple[str, ...]]:
    step = "any" if check.largest_step is None else f"{check.largest_step:g}"
    first = check.shown[0] if check.shown else None
    rows: list[tuple[str, ...]] = [
        (
            check.name,
            str(first) if first else "-",
            _range(check),
            step,
            check.flag.name.lower(),
            ", ".join(check.wiring),
            check.health.value,
        )
    ]
    more = check.shown[1:]
    return rows + [("", str(m), "", "", m.flag.name.lower(), "", "") for m in more]


def _range(check: SensorCheck) -> str:
    if check.unit is None:
        return "yes, no"
    low, high = ("" if x is None else f"{x:g}" for x in (check.low, check.high))
    return f"{low}..{high} {check.unit}"


BOX_WIDTH = 76


@dataclass(frozen=True)
class NodeIdentification:
    """The node and the machine that it runs on.

    Attributes:
        node: Id of the node.
        latitude: In degrees.
        longitude: In degrees.
        cell: Topic of its S2 cell.
        time: ISO time of the check.
        is_synchronised: Whether a time server has set the clock.
        versions: Versions of the program and of its platform, by name.
    """

    node: str
    latitude: float
    longitude: float
    cell: str
    time: str
    is_synchronised: bool
    versions: Mapping[str, str]


@dataclass(frozen=True)
class CheckReport:
    """Result of `edge-agent check`.

    Attributes:
        machine: The node.
        sensor_checks: Checks of its sensors; None when they were not opened.
        link: Result of the link check; None without one.
        change_counts: Number of changes of each sensor in a live check; empty without
            one.
        problems: Problems beside those of sensors and link.
    """

    machine: NodeIdentification
    sensor_checks: Sequence[SensorCheck] | None
    link: LinkReport | None = None
    change_counts: Mapping[str, int] = field(default_factory=dict)
    problems: Sequence[str] = ()

    @property
    def is_passed(self) -> bool:
        """Whether sensors and link work and there is no other problem."""
        are_well = all(check.is_ok for check in self.sensor_checks or ())
        is_linked = self.link is None or self.link.is_passed
        return are_well and is_linked and not self.problems

    def to_dict(self) -> dict[str, Any]:
        """As a dict of JSON's types."""
        checks = (
            None
            if self.sensor_checks is None
            else [c.to_dict() for c in self.sensor_checks]
        )
        return {
            "verdict": "pass" if self.is_passed else "fail",
            **vars(self.machine),
            "sensors": checks,
            "moves": dict(self.change_counts),
            "link": self.link and self.link.to_dict(),
            "problems": list(self.problems),
        }

    def format_box(self) -> list[str]:
        """Format the summary as a box."""
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
        versions = [f"{name} {version}" for name, version in machine.versions.items()]
        yield from _wrapped(f"versions  {', '.join(versions)}")
        yield from self._sensors()
        if self.link is None:
            yield "link      not tested; use --link"
        else:
            for line in self.link.format_lines():
                yield from _wrapped(line)
        for problem in self.problems:
            yield from _wrapped(f"!! {problem}")

    def _sensors(self) -> Iterator[str]:
        if self.sensor_checks is None:
            yield "sensors   not checked"
            return
        good = sum(check.is_ok for check in self.sensor_checks)
        yield f"sensors   {good} of {len(self.sensor_checks)} well"
        for check in self.sensor_checks:
            moves = self.change_counts.get(check.name, 0)
            moved = f", moved {moves}x" if moves else ""
            read = str(check.shown[0]) if check.shown else "no reading"
            mark = "ok  " if check.is_ok else "FAIL"
            health = "" if check.is_ok else f" ({check.health})"
            line = f"  {mark} {check.name}{health}: {read}{moved}"
            yield from _wrapped(f"{line} [{', '.join(check.wiring)}]")


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(line, BOX_WIDTH - 2, subsequent_indent=" " * 10)

"""What can still be used of a broken settings file, and the report that says so.

A node whose file is wrong would be silent until somebody climbs up to it. When its
id, its place and a Manager can be read, it starts without what is wrong, and tells.
Nothing is guessed that would make a false reading: a sensor with one wrong key is
left out, and a broken ``[queue]`` leaves the queue's file alone.
"""

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from edge_agent.config import NOT_UTF_8, NodeSettings, from_table
from spatial_mqtt.endpoint import Endpoint
from spatial_mqtt.envelope import MessageId, Pack, Reading
from spatial_mqtt.errors import FieldError
from spatial_mqtt.settings import SettingsError, parse

PRIORITY = 3
"""Above routine, so that it neither waits nor gathers; below every alarm."""

REPORT_EVERY_S = 3600.0
HEALTH = "config/health"
MISTAKE = "config/mistake"
MOST_MISTAKES = 20

Table = dict[str, Any]

_SECTION = re.compile(r"^\[", re.MULTILINE)
_PATH = re.compile(r"[A-Za-z0-9_-]+(\[\d+\])?(\.[A-Za-z0-9_-]+(\[\d+\])?)*")
_NEVER_DROPPED = frozenset({"node", "uplink", "simulation"})
_SPARE = {"kind": "node", "name": "node"}


@dataclass(frozen=True)
class Safe:
    """A node without what is wrong in its file.

    Attributes:
        node: What can be used.
        problems: What is wrong, one sentence each.
        has_queue: Whether the file says for certain which queue to use, and how.
    """

    node: NodeSettings
    problems: tuple[str, ...]
    has_queue: bool


def salvage(raw: bytes) -> Safe | None:
    """What can be used of a settings file that is wrong; None when it is too little."""
    text = raw.decode(errors="replace")
    table, problems = _pieces(text)
    has_queue = not problems or "queue" in table
    if text.encode() != raw:
        problems.append(NOT_UTF_8)
        has_queue = False
    told = list(problems)
    while True:
        try:
            node = from_table({**table, "sensor": table.get("sensor") or [_SPARE]})
        except SettingsError as error:
            told += [p for p in error.problems if p not in told]
            before = copy.deepcopy(table)
            for problem in error.problems:
                _remove(table, problem)
            has_queue &= ("queue" in table) == ("queue" in before)
            if table == before:
                return None
        else:
            return Safe(node, tuple(told), has_queue) if told else None


def report(safe: Safe, now_s: float, synchronised: bool) -> Pack:
    """The message that says what is wrong; the queue will give it its id.

    Args:
        safe: The node.
        now_s: Unix time.
        synchronised: Whether a time server has set the clock.
    """
    count = len(safe.problems)
    words = f"safe mode: {count} mistake{'s' * (count > 1)} in the settings"
    mistakes = safe.problems[:MOST_MISTAKES]
    return Pack(
        id=MessageId(safe.node.settings.node.id, "-", 0),
        priority=PRIORITY,
        time_s=round(now_s, 3),
        readings=(
            Reading(HEALTH, None, words),
            *(Reading(f"{MISTAKE}/{n}", None, p) for n, p in enumerate(mistakes, 1)),
        ),
        synchronised=synchronised,
        why=words,
    )


def tell(put: Callable[[], object], wait: Callable[[float], bool]) -> None:
    """Report now, and again as long as it is so.

    Args:
        put: Puts the report on the queue.
        wait: Waits so many seconds; whether to stop.
    """
    put()
    while not wait(REPORT_EVERY_S):
        put()


def _pieces(text: str) -> tuple[Table, list[str]]:
    """The file as a table; of one that is no TOML, the sections that are."""
    try:
        return parse(text), []
    except SettingsError as error:
        problems = list(error.problems)
    starts = [match.start() for match in _SECTION.finditer(text)]
    table: Table = {}
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        try:
            _merge(table, parse(text[start:end]))
        except SettingsError:
            title = text[start:end].partition("\n")[0]
            line = text.count("\n", 0, start) + 1
            problems.append(f"the section {title} on line {line} is left out")
    return table, problems


def _merge(table: Table, more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        known = table.get(key)
        if isinstance(known, dict) and isinstance(value, dict):
            _merge(known, value)
        elif isinstance(known, list) and isinstance(value, list):
            known += value
        else:
            table[key] = value


def _remove(table: Table, problem: str) -> None:
    """Take out what a problem is about; leave everything when that is essential."""
    match = _PATH.match(problem)
    section, _, rest = (match[0] if match else "").partition(".")
    if section.startswith("sensor"):
        _remove_sensor(table, section, rest)
    elif section == "queue":
        table.pop("queue", None)
    elif (section, rest) == ("uplink", "managers"):
        table["uplink"]["managers"] = _good_urls(table["uplink"].get("managers"))
    else:
        _remove_key(table, section, rest)


def _remove_key(table: Table, section: str, rest: str) -> None:
    keys, key = table.get(section), re.split(r"[.\[]", rest)[0]
    if isinstance(keys, dict) and key in keys:
        del keys[key]
    elif section not in _NEVER_DROPPED:
        table.pop(section, None)


def _remove_sensor(table: Table, section: str, rest: str) -> None:
    sensors = table.get("sensor")
    if not isinstance(sensors, list):
        table.pop("sensor", None)
        return
    number = re.fullmatch(r"sensor\[(\d+)\]", section)
    name = rest.partition(".")[0]
    table["sensor"] = [
        sensor
        for at, sensor in enumerate(sensors, start=1)
        if isinstance(sensor, dict)
        and not (number and at == int(number[1]))
        and not (not number and str(sensor.get("name")) == name)
    ]


def _good_urls(urls: object) -> list[str]:
    return [url for url in urls if _is_url(url)] if isinstance(urls, list) else []


def _is_url(url: object) -> bool:
    try:
        Endpoint.parse(url if isinstance(url, str) else "")
    except FieldError:
        return False
    return True

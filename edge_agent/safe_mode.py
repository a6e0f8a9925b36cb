"""What can still be used of a broken settings file, and the report that says so.

A node whose file is wrong would be silent until somebody climbs up to it. When its
id, its place and a Manager can be read, it starts without what is wrong, and tells.
Nothing is guessed that would make a false reading: a sensor with one wrong key is
left out, and a broken ``[queue]`` leaves the queue's file alone.
"""

import copy
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edge_agent.config import NOT_UTF_8, NodeSettings, from_table
from service_runtime.errors import FieldError
from service_runtime.settings import SettingsError, parse
from service_runtime.tls import Endpoint
from slope_science.reasons import Reason, ReasonCode, encode
from spatial_mqtt.senml import MessageId, Pack, Reading

PRIORITY = 3
"""Above routine, so that it neither waits nor gathers; below every alarm."""

REPORT_EVERY_S = 3600.0
HEALTH = "config/health"
MISTAKE = "config/mistake"
MOST_MISTAKES = 20

Table = dict[str, Any]

_SECTION = re.compile(r"^\[", re.MULTILINE)
_PATH = re.compile(r"[A-Za-z0-9_-]+(\[\d+\])?(\.[A-Za-z0-9_-]+(\[\d+\])?)*")
_LISTS = ("sensor", "triage.limit", "alarm")
_ELEMENT = re.compile(r"(sensor|triage\.limit|alarm)\[(\d+)\]")
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
    numbers = {name: list(range(1, len(_list(table, name)) + 1)) for name in _LISTS}
    while True:
        try:
            node = from_table({**table, "sensor": table.get("sensor") or [_SPARE]})
        except SettingsError as error:
            in_file = [_as_in_file(problem, numbers) for problem in error.problems]
            told += [p for p in in_file if p not in told]
            before = copy.deepcopy(table)
            # all at once: an element's number is that of the list as it was read
            wrong = {place for p in error.problems for place in _elements(table, p)}
            for problem in error.problems:
                _remove(table, problem)
            for name in _LISTS:
                _drop(table, name, numbers[name], wrong)
            has_queue &= ("queue" in table) == ("queue" in before)
            if table == before:
                return None
        else:
            return Safe(node, tuple(told), has_queue) if told else None


def safe_words(problems: Sequence[str]) -> str:
    """That a node is in safe mode."""
    count = len(problems)
    return f"safe mode: {count} mistake{'s' * (count > 1)} in the settings"


def report(safe: Safe, now_s: float, synchronised: bool) -> Pack:
    """The message that says what is wrong; the queue will give it its id.

    Args:
        safe: The node.
        now_s: Unix time.
        synchronised: Whether a time server has set the clock.
    """
    words = safe_words(safe.problems)
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
        reasons=[encode(Reason(ReasonCode.SAFE_MODE, mistakes=len(safe.problems)))],
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


def _list(table: Table, name: str) -> list[Any]:
    """The array of tables of a name, such as triage.limit; empty if it is none."""
    found: Any = table
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found if isinstance(found, list) else []


def _as_in_file(problem: str, numbers: Mapping[str, Sequence[int]]) -> str:
    """A problem with the number that its element has in the file."""
    match = _ELEMENT.match(problem)
    if match is None:
        return problem
    name, at = match[1], int(match[2])
    return f"{name}[{numbers[name][at - 1]}]{problem[match.end() :]}"


def _elements(table: Table, problem: str) -> Iterator[tuple[str, int]]:
    """Which elements of which list a problem is about, counted from 0."""
    match = _ELEMENT.match(problem)
    if match is not None:
        yield match[1], int(match[2]) - 1
    elif problem.startswith("sensor"):
        name = _path(problem).removeprefix("sensor").strip(".").partition(".")[0]
        for at, sensor in enumerate(_list(table, "sensor")):
            if not isinstance(sensor, dict) or str(sensor.get("name")) == name:
                yield "sensor", at


def _drop(
    table: Table, name: str, numbers: list[int], wrong: Container[tuple[str, int]]
) -> None:
    """Take elements out of a list, and their numbers."""
    elements = _list(table, name)
    kept = [at for at in range(len(elements)) if (name, at) not in wrong]
    elements[:] = [elements[at] for at in kept]
    numbers[:] = [numbers[at] for at in kept]


def _remove(table: Table, problem: str) -> None:
    """Take out what a problem is about, unless it is essential, or of a list."""
    path = _path(problem)
    section, _, rest = path.partition(".")
    if _ELEMENT.match(problem):
        return
    if section == "sensor":
        if not isinstance(table.get("sensor"), list):
            table.pop("sensor", None)
    elif section == "queue":
        table.pop("queue", None)
    elif (section, rest) == ("uplink", "managers"):
        table["uplink"]["managers"] = _good_urls(table["uplink"].get("managers"))
    elif path.startswith("triage.rules."):
        # a rule that is right beside a wrong one still holds
        _remove_key(table["triage"], "rules", path.split(".")[2])
    else:
        _remove_key(table, section, rest)


def _path(problem: str) -> str:
    match = _PATH.match(problem)
    return match[0] if match else ""


def _remove_key(table: Table, section: str, rest: str) -> None:
    keys, key = table.get(section), re.split(r"[.\[]", rest)[0]
    if isinstance(keys, dict) and key in keys:
        del keys[key]
    elif section not in _NEVER_DROPPED:
        table.pop(section, None)


def _good_urls(urls: object) -> list[str]:
    return [url for url in urls if _is_url(url)] if isinstance(urls, list) else []


def _is_url(url: object) -> bool:
    try:
        Endpoint.parse(url if isinstance(url, str) else "")
    except FieldError:
        return False
    return True

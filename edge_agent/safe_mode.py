"""Safe mode: a node runs on the usable part of a broken settings file and reports it.

A node whose file is wrong would be silent until a person visits it. When the
id, the position and a Manager can be read, it starts without the wrong parts. Nothing
is guessed that could make a false reading: a sensor with one wrong key is left out as
a whole, and with a broken ``[queue]`` the queue file is not opened.

When not even those can be read, the node runs with the settings of its last run, of
which there is a copy in the state folder of its service.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from edge_agent.config import NOT_UTF_8, NodeSettings, parse_node_settings
from service_runtime.errors import FieldError
from service_runtime.files import write_atomic
from service_runtime.settings import Problem, SettingsError, parse_toml, read_toml
from service_runtime.tls import Endpoint, TlsFiles, check_link
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason, encode_reason
from spatial_mqtt.senml import MessageId, Pack, Reading

PRIORITY = 3
"""Above routine, so that the report is sent at once; below every alarm."""

REPORT_EVERY_S = 3600.0
HEALTH = "config/health"
MISTAKE = "config/mistake"
MAX_MISTAKES = 20
LAST_FILE = "last-node.toml"
"""In the state folder: the settings of the last run with valid ones."""

Table = dict[str, Any]
_Path = tuple[str | int, ...]

_SECTION = re.compile(r"^\[", re.MULTILINE)
_LISTS: tuple[_Path, ...] = (("sensor",), ("triage", "limit"), ("alarm",))
_ESSENTIAL = frozenset({"node", "uplink", "simulation"})
_IDENTITY = ("id", "latitude", "longitude")
_PLACEHOLDER_SENSOR = {"kind": "node", "name": "node"}


@dataclass(frozen=True)
class RecoveredSettings:
    """The usable part of a node's settings file.

    Attributes:
        node: Settings without the wrong parts.
        problems: The mistakes, one sentence each.
        has_queue: Whether the file names the queue file without doubt.
    """

    node: NodeSettings
    problems: tuple[str, ...]
    has_queue: bool


def recover_settings(raw: bytes, name: str = "the file") -> RecoveredSettings | None:
    """Leave out the wrong parts of a settings file.

    Args:
        raw: The file.
        name: Its name in errors.

    Returns:
        The rest; None when nothing is wrong, or when an essential part is.
    """
    text = raw.decode(errors="replace")
    table, problems = _parse_sections(text, name)
    has_queue = not problems or "queue" in table
    if text.encode() != raw:
        problems.append(NOT_UTF_8)
        has_queue = False
    # Numbers of the elements in the file, to name them after others were removed.
    numbers = {path: list(range(1, len(_list(table, path)) + 1)) for path in _LISTS}
    node, found = _attempt(table)
    while node is None:
        in_file = [str(_renumbered(problem, numbers)) for problem in found]
        problems += [sentence for sentence in in_file if sentence not in problems]
        # All at once: an index is that of the list as it was read.
        wrong = {path for problem in found for path in _wrong_parts(table, problem)}
        if not wrong:
            return None
        has_queue &= ("queue",) not in wrong
        for path in sorted(wrong, reverse=True):
            _remove(table, path)
            if path[:-1] in numbers:
                _remove(numbers[path[:-1]], path[-1:])
        node, found = _attempt(table)
    return RecoveredSettings(node, tuple(problems), has_queue) if problems else None


def save_last_settings(file: Path, state: Path) -> None:
    """Copy valid settings to the state folder, unless they are there already.

    Raises:
        OSError: The file cannot be read, or the copy cannot be written.
    """
    raw, last = file.read_bytes(), state / LAST_FILE
    if not last.exists() or last.read_bytes() != raw:
        write_atomic(last, raw)


def recover_last_settings(
    raw: bytes, error: SettingsError | OSError, state: Path
) -> RecoveredSettings | None:
    """Use the settings of the last run instead of a file without usable settings.

    Args:
        raw: The file; empty if it cannot be read.
        error: Why it cannot be used.
        state: State folder of the service.

    Returns:
        None without valid settings of a last run, and when the file names another node
        or position: the card may have been copied for that one.
    """
    last = state / LAST_FILE
    try:
        table = read_toml(last)
        node = parse_node_settings(table)
    except (OSError, SettingsError):
        return None
    if _is_of_another_node(raw, table["node"]):
        return None
    problems = error.problems if isinstance(error, SettingsError) else (error,)
    instead = f"the settings of the last run are used instead: {last}"
    return RecoveredSettings(node, (*map(str, problems), instead), has_queue=True)


def _is_of_another_node(raw: bytes, last: Mapping[str, Any]) -> bool:
    """Whether a file has a valid id or position that is not that of the last run."""
    table, _ = _parse_sections(raw.decode(errors="replace"))
    given = table.get("node")
    if not isinstance(given, dict):
        return False
    _, found = _attempt({**table, "node": {**last, **given}})
    wrong = {problem.path[1] for problem in found if problem.path[:1] == ("node",)}
    keys = [key for key in _IDENTITY if key in given and key not in wrong]
    return any(given[key] != last[key] for key in keys)


def format_safe_mode(problems: Sequence[str]) -> str:
    """Format the number of mistakes of a node in safe mode."""
    count = len(problems)
    return f"safe mode: {count} mistake{'s' * (count > 1)} in the settings"


def make_report(safe: RecoveredSettings, now_s: float, synchronised: bool) -> Pack:
    """Make the message that lists the mistakes; the queue assigns its id.

    Args:
        safe: The node.
        now_s: Unix time.
        synchronised: Whether a time server has set the clock.
    """
    summary = format_safe_mode(safe.problems)
    mistakes = safe.problems[:MAX_MISTAKES]
    return Pack(
        id=MessageId(safe.node.settings.node.id, "-", 0),
        priority=PRIORITY,
        time_s=round(now_s, 3),
        readings=(
            Reading(HEALTH, None, summary),
            *(Reading(f"{MISTAKE}/{n}", None, p) for n, p in enumerate(mistakes, 1)),
        ),
        synchronised=synchronised,
        why=summary,
        reasons=[
            encode_reason(Reason(ReasonCode.SAFE_MODE, mistakes=len(safe.problems)))
        ],
    )


def report_periodically(
    put: Callable[[], object], wait: Callable[[float], bool]
) -> None:
    """Report now, and again every `REPORT_EVERY_S`.

    Args:
        put: Puts the report on the queue.
        wait: Waits the given seconds; returns whether to stop.
    """
    put()
    while not wait(REPORT_EVERY_S):
        put()


def _parse_sections(text: str, name: str = "") -> tuple[Table, list[str]]:
    """Parse the file; when it is no TOML, each section by itself."""
    text = text.removeprefix("\ufeff")  # the byte order mark of Windows' editors
    try:
        return parse_toml(text, name), []
    except SettingsError as error:
        problems = [str(error)]
    starts = [match.start() for match in _SECTION.finditer(text)]
    table: Table = {}
    for start, end in pairwise([*starts, len(text)]):
        try:
            _merge(table, parse_toml(text[start:end]))
        except SettingsError:
            title = text[start:end].partition("\n")[0]
            line = text.count("\n", 0, start) + 1
            problems.append(f"the section {title} on line {line} is left out")
    return table, problems


def _attempt(table: Table) -> tuple[NodeSettings | None, tuple[Problem, ...]]:
    """The settings, or None and what is wrong with them."""
    sensors = table.get("sensor") or [_PLACEHOLDER_SENSOR]
    try:
        return parse_node_settings({**table, "sensor": sensors}), ()
    except SettingsError as error:
        return None, error.problems


def _merge(table: Table, more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        existing = table.get(key)
        if isinstance(existing, dict) and isinstance(value, dict):
            _merge(existing, value)
        elif isinstance(existing, list) and isinstance(value, list):
            existing += value
        else:
            table[key] = value


def _list(table: Table, path: _Path) -> list[Any]:
    """The array of tables at a path; empty when there is none."""
    found: Any = table
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, list) else []


def _renumbered(problem: Problem, numbers: Mapping[_Path, list[int]]) -> Problem:
    """The problem, with the number that its element has in the file."""
    name, _, rest = problem.field.partition("[")
    in_file = numbers.get(tuple(name.split(".")))
    if in_file is None or not rest:
        return problem
    number, _, rest = rest.partition("]")
    return replace(problem, field=f"{name}[{in_file[int(number) - 1]}]{rest}")


def _wrong_parts(table: Table, problem: Problem) -> Iterator[_Path]:
    """Where a problem lies in the table; nothing for an essential part."""
    match problem.path:
        case ("sensor" | "alarm" as name, int(at), *_):
            yield name, at
        case ("triage", "limit", int(at), *_):
            yield "triage", "limit", at
        case ("sensor", *names) if isinstance(table.get("sensor"), list):
            yield from (
                ("sensor", at)
                for at, sensor in enumerate(table["sensor"])
                if not isinstance(sensor, dict) or str(sensor.get("name")) in names[:1]
            )
        case ("uplink", "managers") if urls := _list(table, ("uplink", "managers")):
            bad = [at for at, url in enumerate(urls) if not _is_link(url, table)]
            yield from (("uplink", "managers", at) for at in bad)
        case path:
            yield from _wrong_key(table, path)


def _wrong_key(table: Table, path: _Path) -> Iterator[_Path]:
    """The key at a path; its section where the key is not the cause, or not alone."""
    section, *keys = map(str, path)
    if section == "queue":
        keys = []
    if path[:2] == ("triage", "rules"):
        # A correct rule is kept when another one is wrong.
        yield (
            path[:3] if path[2:3] and path[2] in table["triage"]["rules"] else path[:2]
        )
    elif keys and isinstance(table.get(section), dict) and keys[0] in table[section]:
        yield section, keys[0]
    elif section in table and section not in _ESSENTIAL:
        yield (section,)


def _remove(table: Any, path: _Path) -> None:  # noqa: ANN401 - TOML has any type
    for step in path[:-1]:
        table = table[step]
    del table[path[-1]]


def _is_link(url: object, table: Table) -> bool:
    """Whether a URL parses, and may be used with the ``[tls]`` of a table."""
    tls = table.get("tls")
    is_allowed = isinstance(tls, dict) and tls.get("allow_plain_mqtt") is True
    try:
        endpoint = Endpoint.parse(url if isinstance(url, str) else "")
        check_link(endpoint, TlsFiles(allow_plain_mqtt=is_allowed))
    except FieldError:
        return False
    return True

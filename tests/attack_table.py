"""Table of the attacks, as a plug-in of pytest: ``make attack``.

A test that makes an attack has the mark ``attack(name, before)``. What it measured with
the fixture `report` is printed beside its result: `bystander_s`, how long another one
waited during the attack, for the receipt of an alarm or for the console's answer;
`memory_mib` and `disk_mib` of the victim.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

HEAD = (
    "attack", "before", "now", "others wait, p99 s", "memory MiB", "disk MiB",
)  # fmt: skip
NOT_MEASURED = "-"
MEASURED = ("bystander_s", "memory_mib", "disk_mib")
"""Arguments of `report` that the table shows."""


def timed(act: Callable[[], object], count: int = 1) -> list[float]:
    """Do something several times; seconds that each took."""
    took_s = []
    for _ in range(count):
        began_s = time.monotonic()
        act()
        took_s.append(time.monotonic() - began_s)
    return took_s


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[None]:
    """Attach the attack's name to the report of its test."""
    result: Any = yield
    mark = item.get_closest_marker("attack")
    if mark is not None:
        name, before = mark.args
        result.user_properties.append(("attack", (name, before)))
    return result


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print one row for each attack."""
    rows: dict[str, tuple[str, str, list[str], dict[str, list[float]]]] = {}
    for outcome in ("passed", "failed", "error", "skipped"):
        for result in terminalreporter.stats.get(outcome, ()):
            known = dict(getattr(result, "user_properties", ()))
            if "attack" not in known or (result.when != "call" and outcome == "passed"):
                continue
            name, before = known["attack"]
            row = rows.setdefault(name, (name, before, [], {}))
            row[2].append(outcome)
            _add(row[3], result.user_properties)
    terminalreporter.section("attacks")
    cells = [HEAD, *(_cells(*row) for row in rows.values())]
    widths = [max(len(row[at]) for row in cells) for at in range(len(HEAD))]
    for row in cells:
        line = "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True))
        terminalreporter.write_line(line.rstrip())


def _add(
    measured: dict[str, list[float]], properties: Sequence[tuple[str, Any]]
) -> None:
    """Add what a test measured; it may report more than once."""
    for key, value in properties:
        if key in MEASURED:
            many = value if isinstance(value, Sequence) else [value]
            measured.setdefault(key, []).extend(many)


def percentile_99(values: Sequence[float]) -> float:
    """The least value that 99 % do not exceed: the largest of up to 100."""
    return sorted(values)[math.ceil(0.99 * len(values)) - 1]


def _cells(
    name: str, before: str, outcomes: Sequence[str], measured: dict[str, list[float]]
) -> tuple[str, ...]:
    held, of = outcomes.count("passed"), len(outcomes)
    now = "held" if held == of else f"HELD IN {held} OF {of} TESTS"
    delays = measured.get("bystander_s", ())
    p99 = f"{percentile_99(delays):.2f} ({len(delays)})" if delays else NOT_MEASURED
    highest = (
        f"{max(measured[key]):.0f}" if measured.get(key) else NOT_MEASURED
        for key in MEASURED[1:]
    )
    return name, before, now, p99, *highest

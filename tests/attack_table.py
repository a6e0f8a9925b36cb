"""Table of the attacks, as a plug-in of pytest: ``make attack``.

A test that makes an attack has the mark ``attack(name, before)``. What it measured with
the fixture `report` is printed beside its result: `bystander_s`, the delays of another
one's alarms; `memory_mib` and `disk_mib` of the victim.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

HEAD = (
    "attack", "before", "now", "alarms of others, p99 s", "memory MiB", "disk MiB",
)  # fmt: skip
NOT_MEASURED = "-"
MEASURED = ("bystander_s", "memory_mib", "disk_mib")
"""Arguments of `report` that the table shows."""


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
            name, before = known.pop("attack")
            row = rows.setdefault(name, (name, before, [], {}))
            row[2].append(outcome)
            for key, value in known.items():
                row[3].setdefault(key, []).extend(
                    value if isinstance(value, Sequence) else [value]
                )
    terminalreporter.section("attacks")
    cells = [HEAD, *(_cells(*row) for row in rows.values())]
    widths = [max(len(row[at]) for row in cells) for at in range(len(HEAD))]
    for row in cells:
        line = "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True))
        terminalreporter.write_line(line.rstrip())


def _cells(
    name: str, before: str, outcomes: Sequence[str], measured: dict[str, list[float]]
) -> tuple[str, ...]:
    held, of = outcomes.count("passed"), len(outcomes)
    now = "held" if held == of else f"HELD IN {held} OF {of} TESTS"
    delays = sorted(measured.get("bystander_s", ()))
    p99 = f"{delays[int(0.99 * (len(delays) - 1))]:.2f}" if delays else NOT_MEASURED
    highest = (
        f"{max(measured[key]):.0f}" if measured.get(key) else NOT_MEASURED
        for key in MEASURED[1:]
    )
    return name, before, now, p99, *highest

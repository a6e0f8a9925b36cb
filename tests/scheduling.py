"""How pytest-xdist spreads the tests over its processes.

A *group* runs in one process, one test after another:

* ``spark``: everything that starts a JVM, so that few Spark jobs compete for the
  processors, and so that most tests share one session;
* ``soak`` and ``programs``: of these the tests of whole systems, which start programs
  with a JVM of their own, and mostly wait for kills, outages and restarts;
* ``container``: the booted systemd of ``tests/systemd``;
* ``pages0`` and ``pages1``: the pages of the console, each file in one of them. A
  browser with a console to fork from takes three seconds of a processor to start;
* a file otherwise, so that its fixtures of module scope are made once. The tests of
  `SPLIT` files are slow and share nothing, so each is a group of its own.

Groups that take longest start first; short ones fill the gaps at the end.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from zlib import adler32

import pytest

TESTS = Path(__file__).parent
SLOWEST = ("soak", "spark", "programs", "container", "pages0", "pages1")
SLOW = (
    "backend_spark/tables/test_power_cut",
    "backend_spark/ingest/test_power_cut",
    "chaos",
    "system",
    "soak",
    "packages",
    "docs",
    "backend_spark/exports/test_backup",
    "backend_spark/tables/test_stores",
    "backend_spark/console",
    "gateway_daemon",
    "edge_agent/test_",
    "edge_agent/uplink",
    "spatial_mqtt/test_tcp",
)
"""Files and folders of slow tests, which start before the others."""

SPLIT = (
    "chaos/test_chaos",
    "system",
    "soak",
    "gateway_daemon/test_",
    "gateway_daemon/ca",
    "backend_spark/tables/test_power_cut",
)
PROGRAMS = {
    "soak": "soak",
    **dict.fromkeys(("chaos", "docs", "system", "upgrade"), "programs"),
}
"""Group of the tests that start a JVM, by their folder; ``spark`` for others."""

SPARK_FIXTURES = {"spark", "quick_java"}


def arrange(items: list[pytest.Item]) -> None:
    """Give each test its group, and put groups that take long first."""
    groups = {item: group_of(item) for item in items}
    for item, group in groups.items():
        if group:
            item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: _rank(groups[item], item.path))


def starts_java(item: pytest.Item) -> bool:
    """Whether a test starts a JVM, in its own process or in another."""
    fixtures: Sequence[str] = getattr(item, "fixturenames", ())
    return bool(
        item.get_closest_marker("spark") or SPARK_FIXTURES.intersection(fixtures)
    )


def group_of(item: pytest.Item) -> str | None:
    """The group of a test; None if it may run in any process."""
    if starts_java(item):
        folder = _name(item.path).partition("/")[0]
        return PROGRAMS.get(folder, "spark")
    if item.get_closest_marker("container"):
        return "container"
    path = _name(item.path)
    if "chrome" in getattr(item, "fixturenames", ()):
        return f"pages{adler32(path.encode()) % 2}"
    return None if path.startswith(SPLIT) else path


def _rank(group: str | None, path: Path) -> int:
    """Position of a test's group; tests within a group keep their order."""
    if group in SLOWEST:
        return SLOWEST.index(group)
    name = _name(path)
    folder = next(
        (i for i, slow in enumerate(SLOW) if name.startswith(slow)), len(SLOW)
    )
    return len(SLOWEST) + folder


@cache  # thousands of tests share some hundred files
def _name(path: Path) -> str:
    return path.relative_to(TESTS).as_posix()

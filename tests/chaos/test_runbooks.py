"""Causes the fault of each runbook and checks the symptoms that the page lists.

The symptoms are read from the page itself.
"""

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chaos.monitored_system import MonitoredSystem
from chaos.whole_system import LINK, MANAGER, MANAGER_LINK
from conftest import Broker, wait_until
from soak.damage import move_log_into_file
from soak.disk import fill, mounted
from soak.rig import DISTRIBUTED, FED, GATEWAY, LOCAL

pytestmark = [pytest.mark.system, pytest.mark.broker]

PAGE = Path(__file__).parents[2] / "docs/how-to/runbooks.md"
SYMPTOM = re.compile(
    r"^\| (status|journal|metrics) of the (\w+) \| `(.+?)`(?: is (.+?))? \|$",
    re.MULTILINE,
)
SEEN_WITHIN_S = 180.0
CLEARED_WITHIN_S = 240.0
BROKEN_SENSOR = """
[[sensor]]
kind = "ds18b20"
name = "ground"
rom = "28-0123456789ab"
interval_s = 1
"""

Cause = Callable[[MonitoredSystem], contextlib.AbstractContextManager[None]]


def sections() -> dict[str, list[tuple[str, str, str, str]]]:
    """Symptoms of each runbook: place, program, text and a metric's value."""
    parts = re.split(
        r"^## \d+\. ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE
    )[1:]
    return {part.partition("\n")[0]: SYMPTOM.findall(part) for part in parts}


@contextlib.contextmanager
def link_is_cut(system: MonitoredSystem) -> Iterator[None]:
    system.links[LINK].cut()
    try:
        yield
    finally:
        system.links[LINK].restore()


@contextlib.contextmanager
def manager_is_out_of_reach(system: MonitoredSystem) -> Iterator[None]:
    system.links[MANAGER_LINK].cut()
    try:
        yield
    finally:
        system.links[MANAGER_LINK].restore()


def is_killed(name: str) -> Cause:
    @contextlib.contextmanager
    def cause(system: MonitoredSystem) -> Iterator[None]:
        system.kill(name)
        try:
            yield
        finally:
            system.start(name)

    return cause


@contextlib.contextmanager
def sensor_is_broken(system: MonitoredSystem) -> Iterator[None]:
    config = system.folder / f"{FED}.toml"
    before = config.read_text()
    system.stop(FED)
    config.write_text(before + BROKEN_SENSOR)
    system.start(FED)
    try:
        yield
    finally:
        system.stop(FED)
        config.write_text(before)
        system.start(FED)


@contextlib.contextmanager
def nodes_disk_is_full(system: MonitoredSystem) -> Iterator[None]:
    filler = fill(system.disks[FED])
    try:
        yield
    finally:
        filler.unlink()


@contextlib.contextmanager
def queue_is_damaged(system: MonitoredSystem) -> Iterator[None]:
    system.kill(FED)
    # SQLite prefers the pages in its log, which would hide the damage.
    move_log_into_file(system.queue(FED))
    with system.queue(FED).open("r+b") as file:
        file.write(b"\xa5" * 100)
    system.start(FED)
    yield


@contextlib.contextmanager
def ingesters_disk_is_full(system: MonitoredSystem) -> Iterator[None]:
    filler = fill(system.archive.parent)
    try:
        yield
    finally:
        filler.unlink()


@contextlib.contextmanager
def nothing_is_scored(system: MonitoredSystem) -> Iterator[None]:
    yield
    # A run scores the segments present when it starts; an urgent message adds one.
    system.stop(FED)
    system.score()
    symptoms = sections()["Scoring stands still"]
    wait_until(
        lambda: not any(system.shows(*each) for each in symptoms), CLEARED_WITHIN_S
    )
    system.start(FED)


CAUSES: dict[str, Cause] = {
    "A node has no link": link_is_cut,
    "A gateway's daemon is gone": is_killed(GATEWAY),
    "A gateway's own broker is gone": is_killed(LOCAL),
    "A distributed broker is gone": is_killed(DISTRIBUTED),
    "The Manager is out of reach": manager_is_out_of_reach,
    "A sensor fails": sensor_is_broken,
    "A node's disk is full": nodes_disk_is_full,
    "A node's queue file is damaged": queue_is_damaged,
    "The ingester's disk is full": ingesters_disk_is_full,
    "Scoring stands still": nothing_is_scored,
}
SHORT = {
    "A node has no link",
    "A gateway's daemon is gone",
    "A sensor fails",
    "A node's disk is full",
}
"""Faults of the short form; the long form causes the others.

The sensor's fault restarts the node. Its queue's log is then short again and needs the
disk to grow; after two minutes it would not notice a full disk.
"""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MonitoredSystem]:
    """The whole system without Spark; the node and the ingester have small disks."""
    folder = tmp_path_factory.mktemp("system")
    with (
        pytest.MonkeyPatch.context() as environment,
        mounted(folder / "disk", "8m") as disk,
        mounted(folder / "backend", "64m") as backend,
        contextlib.ExitStack() as stack,
    ):
        if disk is None or backend is None:
            pytest.skip("only root may mount small disks")
        environment.setenv("GPIOZERO_PIN_FACTORY", "mock")
        environment.setenv("NOTIFY_SOCKET", "")
        environment.setenv("WATCHDOG_USEC", "2000000")
        brokers = [Broker(folder) for _ in range(5)]
        for broker in brokers:
            stack.callback(broker.kill)
        local, distributed, local_2, directory, directory_2 = brokers
        made = MonitoredSystem(
            folder,
            local,
            distributed,
            local_2=local_2,
            directory=directory,
            directory_2=directory_2,
            disks={FED: disk},
        )
        stack.callback(made.close)
        made.write_nodes(60)
        made.start(MANAGER)
        made.start_backbone()
        made.start_nodes(FED)
        yield made


def archive_grows(system: MonitoredSystem) -> bool:
    """Whether new messages of the node reach the archive."""
    names = set(system.archive.glob("*.arrow"))
    time.sleep(1.0)
    return bool(set(system.archive.glob("*.arrow")) - names)


@pytest.mark.parametrize(
    "title",
    [
        pytest.param(
            title,
            marks=[
                *([] if title in SHORT else [pytest.mark.long]),
                *([pytest.mark.spark] if cause is nothing_is_scored else []),
            ],
        )
        for title, cause in CAUSES.items()
    ],
)
def test_documented_symptoms_appear_and_clear_after_the_repair(
    system: MonitoredSystem, title: str
) -> None:
    """Checks each line of the table; after the repair messages arrive again."""
    symptoms = sections()[title]
    assert symptoms
    system.mark_journals()

    with CAUSES[title](system):
        for symptom in symptoms:
            with contextlib.suppress(AssertionError):
                wait_until(lambda each=symptom: system.shows(*each), SEEN_WITHIN_S)
                continue
            pytest.fail(f"{symptom} is not seen; {system.statuses}")
    for symptom in symptoms:
        if symptom[0] == "metrics" and CAUSES[title] is not nothing_is_scored:
            wait_until(lambda each=symptom: not system.shows(*each), CLEARED_WITHIN_S)
    wait_until(lambda: archive_grows(system), CLEARED_WITHIN_S)


def test_every_runbook_has_a_cause() -> None:
    """Each section of the page is caused by a function of this file."""
    assert list(sections()) == list(CAUSES)

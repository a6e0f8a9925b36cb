"""Each runbook's fault is caused, and is seen where the page says.

The symptoms are read from the page itself.
"""

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chaos.house import LINK, MANAGER, MANAGER_LINK
from chaos.watched import Watched
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
WELL_WITHIN_S = 240.0
BROKEN_SENSOR = """
[[sensor]]
kind = "ds18b20"
name = "ground"
rom = "28-0123456789ab"
interval_s = 1
"""

Cause = Callable[[Watched], contextlib.AbstractContextManager[None]]


def sections() -> dict[str, list[tuple[str, str, str, str]]]:
    """Symptoms of each runbook: where, whose, the words and a metric's value."""
    parts = re.split(
        r"^## \d+\. ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE
    )[1:]
    return {part.partition("\n")[0]: SYMPTOM.findall(part) for part in parts}


@contextlib.contextmanager
def link_is_cut(house: Watched) -> Iterator[None]:
    house.links[LINK].cut()
    try:
        yield
    finally:
        house.links[LINK].mend()


@contextlib.contextmanager
def manager_is_out_of_reach(house: Watched) -> Iterator[None]:
    house.links[MANAGER_LINK].cut()
    try:
        yield
    finally:
        house.links[MANAGER_LINK].mend()


def is_killed(name: str) -> Cause:
    @contextlib.contextmanager
    def cause(house: Watched) -> Iterator[None]:
        house.kill(name)
        try:
            yield
        finally:
            house.start(name)

    return cause


@contextlib.contextmanager
def sensor_is_broken(house: Watched) -> Iterator[None]:
    config = house.folder / f"{FED}.toml"
    before = config.read_text()
    house.stop(FED)
    config.write_text(before + BROKEN_SENSOR)
    house.start(FED)
    try:
        yield
    finally:
        house.stop(FED)
        config.write_text(before)
        house.start(FED)


@contextlib.contextmanager
def nodes_disk_is_full(house: Watched) -> Iterator[None]:
    filler = fill(house.disks[FED])
    try:
        yield
    finally:
        filler.unlink()


@contextlib.contextmanager
def queue_is_damaged(house: Watched) -> Iterator[None]:
    house.kill(FED)
    # SQLite prefers the pages in its log, which would hide the damage.
    move_log_into_file(house.queue(FED))
    with house.queue(FED).open("r+b") as file:
        file.write(b"\xa5" * 100)
    house.start(FED)
    yield


@contextlib.contextmanager
def ingesters_disk_is_full(house: Watched) -> Iterator[None]:
    filler = fill(house.archive.parent)
    try:
        yield
    finally:
        filler.unlink()


@contextlib.contextmanager
def nothing_is_scored(house: Watched) -> Iterator[None]:
    yield
    # One run scores what there is when it begins; an urgent message is a segment.
    house.stop(FED)
    house.score()
    symptoms = sections()["Scoring stands still"]
    wait_until(lambda: not any(house.shows(*each) for each in symptoms), WELL_WITHIN_S)
    house.start(FED)


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


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """The whole system, less Spark; its node and its ingester have small disks."""
    folder = tmp_path_factory.mktemp("house")
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
        made = Watched(
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


def arrives(house: Watched) -> bool:
    """Whether what the node puts now comes into the archive."""
    names = set(house.archive.glob("*.arrow"))
    time.sleep(1.0)
    return bool(set(house.archive.glob("*.arrow")) - names)


@pytest.mark.parametrize(
    "title",
    [
        pytest.param(
            title, marks=pytest.mark.spark if cause is nothing_is_scored else ()
        )
        for title, cause in CAUSES.items()
    ],
)
def test_the_fault_is_seen_where_the_page_says_and_passes(
    house: Watched, title: str
) -> None:
    """Each line of its table; mended, it is seen no more, and messages arrive."""
    symptoms = sections()[title]
    assert symptoms
    house.forget()

    with CAUSES[title](house):
        for symptom in symptoms:
            with contextlib.suppress(AssertionError):
                wait_until(lambda each=symptom: house.shows(*each), SEEN_WITHIN_S)
                continue
            pytest.fail(f"{symptom} is not seen; {house.told}")
    for symptom in symptoms:
        if symptom[0] == "metrics" and CAUSES[title] is not nothing_is_scored:
            wait_until(lambda each=symptom: not house.shows(*each), WELL_WITHIN_S)
    wait_until(lambda: arrives(house), WELL_WITHIN_S)


def test_every_runbook_is_tried() -> None:
    """The page has ten, and each has its cause here."""
    assert list(sections()) == list(CAUSES)

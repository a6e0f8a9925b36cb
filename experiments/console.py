"""``python -m experiments.console``: what the console's pages cost, in time and CPU.

10,000 cells with 72 hours of levels and 20,000 nodes are written as the job writes
them; the real console serves them on this machine, and a real Chromium opens the page.
Measured: the start of the server without a journal, until it answers; the first view,
in a browser that has started, from the start of the navigation until the map has drawn
every cell (the end of the frame of its ``idle`` event); twelve seconds without a change
of level; a move of the slider; the list of events, the table of nodes, the window of a
node; a pass of the job that changes levels; the levels of one and of three days of all
cells for a replay; memory.

Each has its CPU seconds beside its time, which depends on the other programs of the
machine: of the server, of the page's process (renderer), and of all of Chromium, whose
drawing in software a graphics card would do. With ``--old CHECKOUT`` the version in
another checkout, with its pages built, is measured on the same tables in turn.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import click
import numpy as np
from selenium.webdriver import Chrome

from demo.processes import free_port
from experiments.bench.console_tables import STEP_S, Size, write_pass, write_tables
from experiments.bench.resource_usage import cpu_s, read_usage
from tests.browser import browser

CHECKOUT = Path(__file__).parents[1]
BARS_S = {"start": 10.0, "first view": 1.2, "slider": 0.3, "events": 0.5}
"""Seconds on a quiet machine."""

SETTLE_S = 3
MAX_BROWSER_START_S = 20
IDLE_CPU_S = 0.1
"""CPU time within a second below which a browser has started."""

PASS_S = 10
TIMEOUT_S = 120
MAP_DATA = "return {...document.querySelector('.map')?.dataset}"
CLICK = "document.querySelector(arguments[0]).click()"
COUNT = "return document.querySelectorAll(arguments[0]).length"
VIEWS = (
    ("events", "[data-tab=events]", "[data-event]"),
    ("nodes", "[data-tab=health]", "[data-node]"),
    ("node", "[data-node] button", "dialog[open] .uplot"),
)
"""Name, what is clicked, and what appears then."""


@dataclass(frozen=True)
class Cpu:
    """CPU seconds.

    Attributes:
        server: Of the console.
        page: Of the thread in which the page's code runs.
        renderer: Of the page's process, with its workers.
        browser: Of all processes of Chromium.
    """

    server: float
    page: float
    renderer: float
    browser: float

    def since(self, before: "Cpu") -> dict[str, float]:
        """Return the CPU seconds since an earlier reading."""
        earlier = asdict(before)
        return {
            name: round(value - earlier[name], 2)
            for name, value in asdict(self).items()
        }


class Meter:
    """Time and CPU of what a page does.

    Args:
        server: Process id of the console.
        driver: Browser with the page.
    """

    def __init__(self, server: int, driver: Chrome) -> None:
        self._server, self._driver = server, driver
        driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})

    @contextmanager
    def measured(self, into: dict[str, Any]) -> Iterator[None]:
        """Store seconds and CPU seconds of what happens within."""
        before, began_s = self._cpu(), time.monotonic()
        yield
        into["s"] = round(time.monotonic() - began_s, 2)
        into["cpu_s"] = self._cpu().since(before)

    def _cpu(self) -> Cpu:
        found = self._driver.execute_cdp_cmd("Performance.getMetrics", {})
        page = {each["name"]: each["value"] for each in found["metrics"]}
        chromium_s = cpu_s(self._driver.service.process.pid)
        server_s = cpu_s(self._server)
        return Cpu(server_s, page["ThreadTime"], page["ProcessTime"], chromium_s)

    def heap_mb(self) -> float:
        """Return the memory of the page's code after a collection."""
        self._driver.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
        found = self._driver.execute_cdp_cmd("Runtime.getHeapUsage", {})
        return float(round(found["usedSize"] / 1e6, 1))


class Console:
    """The console of a checkout, started without a journal.

    Args:
        checkout: Folder of the program.
        folder: Folder with ``backend.toml``.
    """

    def __init__(self, checkout: Path, folder: Path) -> None:
        self._log = folder / "console.log"
        config = str(folder / "backend.toml")
        command = [sys.executable, "-m", "backend_spark", "console", "--config", config]
        with self._log.open("wb") as file:
            self._server = subprocess.Popen(command, stderr=file, cwd=checkout)
        self.pid = self._server.pid

    def wait(self) -> None:
        """Wait until it serves."""
        while "Uvicorn running" not in self._log.read_text():
            if self._server.poll() is not None:
                sys.exit(self._log.read_text())
            time.sleep(0.02)

    def memory_mb(self) -> dict[str, int]:
        """Return the resident memory, now and the most so far."""
        used = read_usage(self.pid)
        return {"now": used.rss_bytes // 2**20, "most": used.peak_bytes // 2**20}

    def stop(self) -> None:
        """Stop it."""
        self._server.terminate()
        self._server.wait()


def measure(
    checkout: Path, tables: Path, size: Size, packs: str, *, is_opened: bool
) -> dict[str, Any]:
    """Start the console of a checkout on a copy of the tables, and use its pages."""
    found: dict[str, Any] = {"load": round(os.getloadavg()[0], 1)}
    with tempfile.TemporaryDirectory(dir=tables.parent) as name:
        folder, port = Path(name), free_port()
        data = folder / "data"
        shutil.copytree(tables, data, copy_function=os.link)
        (folder / "backend.toml").write_text(
            f'[backend]\ndata = "{data}"\n[console]\nport = {port}\n'
            f"map_packs = {packs}\n"
        )
        began_s = time.monotonic()
        console = Console(checkout, folder)
        try:
            console.wait()
            seconds = round(time.monotonic() - began_s, 2)
            server = round(cpu_s(console.pid), 2)
            found["start"] = {"s": seconds, "cpu_s": {"server": server}}
            found["server_mb"] = console.memory_mb()
            if not is_opened:
                return found
            with browser(folder / "profile") as driver:
                meter = Meter(console.pid, driver)
                _use(driver, meter, port, found)
                _watch_pass(driver, meter, data, size, found)
            found["server_mb_later"] = console.memory_mb()
            found["replay_s"] = {f"{days} d": _replay(port, days) for days in (1, 3)}
        finally:
            console.stop()
    return found


def _use(driver: Chrome, meter: Meter, port: int, found: dict[str, Any]) -> None:
    """Open the page and its parts, one after the other."""
    _wait_until_idle(driver)
    with meter.measured(found.setdefault("first view", {})):
        driver.get(f"http://127.0.0.1:{port}/?lang=ja")
        _wait(lambda: _map_data(driver).get("shownMs"))
    found["first view"]["s"] = round(int(_map_data(driver)["shownMs"]) / 1000, 2)
    found["cells"] = int(_map_data(driver)["cells"])
    _wait(lambda: _map_data(driver).get("nodes"))
    time.sleep(SETTLE_S)
    with meter.measured(found.setdefault("quiet", {})):
        found["pushed"] = _pushed(driver)
    for name, step in (("slider", 200), ("slider, next step", 201)):
        with meter.measured(found.setdefault(name, {})):
            seconds = _slide(driver, step)
        found[name]["s"] = seconds
    for name, button, sign in VIEWS:
        with meter.measured(found.setdefault(name, {})):
            driver.execute_script(CLICK, button)
            _wait(partial(driver.execute_script, COUNT, sign))
    found["heap_mb"] = meter.heap_mb()


def _watch_pass(
    driver: Chrome, meter: Meter, data: Path, size: Size, found: dict[str, Any]
) -> None:
    """Write a pass of the job, which the open map shows."""
    driver.execute_script("document.querySelector('dialog[open]').close()")
    driver.execute_script(CLICK, "[data-tab=map]")
    driver.execute_script(CLICK, ".slider .now")
    time.sleep(SETTLE_S)
    with meter.measured(found.setdefault("pass", {})):
        write_pass(data, size)
        time.sleep(PASS_S)


def _wait_until_idle(driver: Chrome) -> None:
    """Wait until Chromium has started: its own pages are loaded after its window."""
    used_s = cpu_s(driver.service.process.pid)
    for _ in range(MAX_BROWSER_START_S):
        time.sleep(1)
        before_s, used_s = used_s, cpu_s(driver.service.process.pid)
        if used_s - before_s <= IDLE_CPU_S:
            return


def _map_data(driver: Chrome) -> dict[str, str]:
    data: dict[str, str] = driver.execute_script(MAP_DATA)
    return data


def _wait(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > end_s:
            sys.exit("the page did not show what was expected")
        time.sleep(0.02)


def _replay(port: int, days: int) -> float:
    """Return the seconds that loading a number of days of all cells takes."""
    end_s = int(time.time() // STEP_S * STEP_S)
    query = f"from_s={end_s - days * 86_400}&to_s={end_s}"
    began_s = time.monotonic()
    with urlopen(f"http://127.0.0.1:{port}/api/replay/levels?{query}") as answer:
        answer.read()
    return round(time.monotonic() - began_s, 2)


def _pushed(driver: Chrome) -> dict[str, float]:
    """Return the number of updates in twelve seconds, and the gaps between them."""
    driver.set_script_timeout(60)
    script = """
    const done = arguments[0], times = [];
    const source = new EventSource("api/live");
    source.addEventListener("now", () => times.push(performance.now()));
    setTimeout(() => (source.close(), done(times)), 12000);
    """
    times_ms = driver.execute_async_script(script)
    gaps = np.diff(times_ms) / 1000
    return {
        "updates": len(times_ms),
        "median_gap_s": round(float(np.median(gaps)), 2),
        "largest_gap_s": round(float(gaps.max()), 2),
    }


def _slide(driver: Chrome, step: int) -> float:
    """Return the seconds from a move of the slider until the map is drawn."""
    driver.set_script_timeout(60)
    script = """
    const [step, done] = arguments, map = document.querySelector(".map");
    const range = document.querySelector(".slider input");
    const begin = performance.now();
    range.value = step;
    range.dispatchEvent(new Event("input"));
    const before = map.dataset.idle;
    const poll = () => map.dataset.idle !== before ? done(performance.now() - begin)
      : setTimeout(poll, 10);
    setTimeout(poll, 10);
    """
    return float(round(driver.execute_async_script(script, step) / 1000, 2))


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians of the seconds and CPU seconds of each step."""
    found: dict[str, Any] = {}
    for name, first in runs[0].items():
        if isinstance(first, dict) and "cpu_s" in first:
            seconds = statistics.median(run[name]["s"] for run in runs)
            cpu = {
                part: statistics.median(run[name]["cpu_s"][part] for run in runs)
                for part in first["cpu_s"]
            }
            found[name] = {"s": seconds, "cpu_s": cpu}
    return found


@click.command()
@click.option("--cells", default=10_000, show_default=True, help="About; +6 %.")
@click.option("--nodes", default=20_000, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option(
    "--old",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Checkout of an earlier version, set up, to measure in turn.",
)
@click.option(
    "--map-pack",
    "packs",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Ground of the map; may be repeated.",
)
@click.option("--start-only", is_flag=True, help="No browser: start and memory.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("out/console.json")
)
def main(  # noqa: PLR0913, PLR0917 - one parameter for each option
    cells: int,
    nodes: int,
    rounds: int,
    old: Path | None,
    packs: tuple[Path, ...],
    start_only: bool,
    out: Path,
) -> None:
    """Measure the console's pages and write the figures as JSON."""
    size, ground = Size(cells, nodes), json.dumps([str(p.resolve()) for p in packs])
    checkouts = {"old": old.resolve()} if old else {}
    checkouts["new"] = CHECKOUT
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in checkouts}
    with tempfile.TemporaryDirectory(prefix="yamamori-console-") as folder:
        tables = Path(folder, "tables")
        write_tables(tables, size, int(time.time() // STEP_S * STEP_S))
        for _ in range(rounds):
            for name, checkout in checkouts.items():
                run = measure(checkout, tables, size, ground, is_opened=not start_only)
                runs[name].append(run)
    medians = {name: summary(each) for name, each in runs.items()}
    found = {"cores": os.cpu_count(), "bars_s": BARS_S, "median": medians, "runs": runs}
    text = json.dumps(found, indent=2)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
    print(text)
    new = medians["new"]
    sys.exit(any(new[name]["s"] > bar for name, bar in BARS_S.items() if name in new))


if __name__ == "__main__":
    main()

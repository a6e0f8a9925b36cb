"""``python -m experiments.console``: time until the console's first view is shown.

10,000 cells with 72 hours of levels and 20,000 nodes are written as the job writes
them; the real console serves them on this machine, and a real Chromium opens the page.
Measured in the browser: the time from the start of the navigation until the map has
drawn every cell (its ``idle`` event) and the list is shown; then a move of the slider,
the updates pushed in twelve seconds, and the time to load the levels of one and of
three days of all cells for a replay.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import click
import numpy as np
import pyarrow as pa
from deltalake import write_deltalake
from selenium.webdriver import Chrome

from backend_spark.tables.delta_writer import create_tables
from backend_spark.tables.schemas import LEVELS, SILVER, SPARK_TABLES
from demo.processes import free_port
from spatial_mqtt.cells import ANALYSIS_LEVEL, Cell
from spatial_mqtt.topics import cell_topic
from tests.browser import browser

STEP_S = 600
STEPS = 433
SILVER_STEPS = 36
MICRO = 1_000_000
BAR_S = 2.0


@dataclass(frozen=True)
class Size:
    """Amount of data to show."""

    cells: int
    nodes: int
    packs: tuple[Path, ...] = ()


def write_tables(data: Path, size: Size, end_s: int) -> None:
    """Write the tables of a storm over all cells."""
    folder = data / "tables"
    create_tables(folder, SPARK_TABLES)
    locations = _locations(size.nodes, size.cells)
    tokens = list(dict.fromkeys(token for _, token in locations))
    for first in range(0, STEPS, 36):
        steps = range(first, min(first + 36, STEPS))
        rows = pa.concat_tables(_levels(tokens, end_s, step) for step in steps)
        write_deltalake(str(folder / "levels"), rows, mode="append")
    for step in range(SILVER_STEPS):
        at_s = end_s - step * STEP_S
        rows = _silver(locations, at_s)
        write_deltalake(str(folder / "silver"), rows, mode="append")


def _locations(nodes: int, cells: int) -> list[tuple[str, str]]:
    """Return topic and analysis cell of each node; the nodes form a grid of cells."""
    side = math.ceil(math.sqrt(cells))
    found = []
    for at in range(nodes):
        index = at % cells
        latitude = 33.0 + (index // side) * 0.0094
        longitude = 133.0 + (index % side) * 0.0100 + (at // cells) * 0.0005
        cell = Cell.at(latitude, longitude)
        found.append((cell_topic(cell), cell.parent(ANALYSIS_LEVEL).token))
    return found


def _levels(tokens: list[str], end_s: int, step: int) -> pa.Table:
    count = len(tokens)
    wet = np.sin(np.arange(count) / 700.0) ** 2 * step / STEPS
    level = 1 + (wet[:, None] > np.array([0.35, 0.55, 0.75, 0.92])).sum(axis=1)
    reason = [
        [f"soil water index {w * 300:.1f} mm >= warning criterion 150.0 mm"]
        for w in wet
    ]
    columns: dict[str, Any] = {
        "cell": tokens,
        "at": pa.array(np.full(count, (end_s - (STEPS - 1 - step) * STEP_S) * MICRO)),
        "r60_mm": wet * 40,
        "swi_mm": wet * 300,
        "s1_mm": wet * 100,
        "s2_mm": wet * 100,
        "s3_mm": wet * 100,
        "lower_bound": [False] * count,
        "rain_known": [True] * count,
        "level": level,
        "reasons": reason,
        "n_nodes": [2] * count,
    }
    return _table(columns, LEVELS, count)


def _silver(locations: list[tuple[str, str]], at_s: int) -> pa.Table:
    count = len(locations)
    tables = []
    for name, unit in (("rain", "mm"), ("tilt/x", "deg"), ("tilt/y", "deg")):
        moment = np.full(count, at_s * MICRO)
        columns: dict[str, Any] = {
            "node": [f"node-{at:05d}" for at in range(count)],
            "boot": ["b"] * count,
            "cell": [token for _, token in locations],
            "topic": [topic for topic, _ in locations],
            "name": [name] * count,
            "unit": [unit] * count,
            "value": np.full(count, 0.1),
            "at": moment,
            "received_at": moment,
            "synchronised": [True] * count,
        }
        tables.append(_table(columns, SILVER, count))
    return pa.concat_tables(tables)


def _table(columns: dict[str, Any], schema: pa.Schema, count: int) -> pa.Table:
    arrays = [
        pa.array(columns[f.name]).cast(f.type)
        if f.name in columns
        else pa.nulls(count, f.type)
        for f in schema
    ]
    return pa.table(arrays, schema=schema)


def _resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return math.nan


def measure(folder: Path, size: Size, rounds: int) -> dict[str, Any]:
    """Start the console and open its page ``rounds`` times, each in a new browser."""
    end_s = int(time.time() // STEP_S * STEP_S)
    data = folder / "data"
    write_tables(data, size, end_s)
    port = free_port()
    config = folder / "backend.toml"
    packs = json.dumps([str(path.resolve()) for path in size.packs])
    config.write_text(
        f'[backend]\ndata = "{data}"\n[console]\nport = {port}\nmap_packs = {packs}\n'
    )
    log = folder / "console.log"
    began_s = time.monotonic()
    command = [
        sys.executable,
        "-m",
        "backend_spark",
        "console",
        "--config",
        str(config),
    ]
    with log.open("wb") as file:
        server = subprocess.Popen(command, stderr=file)
    try:
        while "Uvicorn running" not in log.read_text():
            time.sleep(0.05)
        start_s = time.monotonic() - began_s
        views = [_view(folder / f"profile-{n}", port) for n in range(rounds)]
        resident_mb = _resident_mb(server.pid)
        replays = {f"{days} d": _replay(port, end_s, days) for days in (1, 3)}
    finally:
        server.terminate()
        server.wait()
    return {
        "cells": size.cells,
        "nodes": size.nodes,
        "map_packs": len(size.packs),
        "server_start_s": round(start_s, 2),
        "server_resident_mb": round(resident_mb),
        "replay_s": replays,
        "views": views,
        "first_view_s": sorted(view["shown_s"] for view in views)[len(views) // 2],
        "bar_s": BAR_S,
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
    }


def _replay(port: int, end_s: int, days: int) -> float:
    """Return the seconds that loading a number of days of all cells takes."""
    query = f"from_s={end_s - days * 86_400}&to_s={end_s}"
    began_s = time.monotonic()
    with urlopen(f"http://127.0.0.1:{port}/api/replay/levels?{query}") as answer:
        answer.read()
    return round(time.monotonic() - began_s, 2)


def _view(profile: Path, port: int) -> dict[str, Any]:
    with browser(profile) as driver:
        driver.get(f"http://127.0.0.1:{port}/?lang=ja")
        script = "return {...document.querySelector('.map')?.dataset}"
        while not (shown := driver.execute_script(script)).get("shownMs"):
            time.sleep(0.05)
        driver.find_element("css selector", ".headline .badge")
        slide_s = _slide(driver)
        pushed = _pushed(driver)
        paint = (
            "return performance.getEntriesByName('first-contentful-paint')[0].startTime"
        )
        return {
            "shown_s": round(int(shown["shownMs"]) / 1000, 2),
            "first_paint_s": round(driver.execute_script(paint) / 1000, 2),
            "cells": int(shown["cells"]),
            "nodes": int(shown.get("nodes", 0)),
            "slider_s": slide_s,
            "pushed": pushed,
        }


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


def _slide(driver: Chrome) -> float:
    """Return the seconds from a move of the slider until the map is drawn."""
    driver.set_script_timeout(60)
    script = """
    const done = arguments[0], map = document.querySelector(".map");
    const range = document.querySelector(".slider input");
    const begin = performance.now();
    range.value = 200;
    range.dispatchEvent(new Event("input"));
    const before = map.dataset.idle;
    const poll = () => map.dataset.idle !== before ? done(performance.now() - begin)
      : setTimeout(poll, 10);
    setTimeout(poll, 10);
    """
    return round(driver.execute_async_script(script) / 1000, 2)


@click.command()
@click.option("--cells", default=10_000, show_default=True)
@click.option("--nodes", default=20_000, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option(
    "--map-pack",
    "packs",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Ground of the map; may be repeated.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("out/console.json")
)
def main(
    cells: int, nodes: int, rounds: int, packs: tuple[Path, ...], out: Path
) -> None:
    """Measure the first view and write it as JSON."""
    with tempfile.TemporaryDirectory(prefix="yamamori-console-") as folder:
        found = measure(Path(folder), Size(cells, nodes, packs), rounds)
    text = json.dumps(found, indent=2)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
    print(text)
    sys.exit(found["first_view_s"] > BAR_S)


if __name__ == "__main__":
    main()
